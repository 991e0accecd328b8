"""Consumers of an interest stream that start later: what stays for them, and its count."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final

import pytest

from jsplan.address import Address
from jsplan.documents.deletions import ConsumerChange, DeletionRequest
from jsplan.facts.consumer_position import position_of
from jsplan.facts.interest import build_change
from jsplan.facts.measure import measure_deletion
from jsplan.facts.measurement import MeasurementRequest
from jsplan.resources.server_features import (
    ACKS_ABOVE_FLOOR_LEVEL,
    EXACT_START_LEVEL,
    STARTS_COUNT_LEVEL,
)
from tests.applying.consumer_helpers import fill, pull
from tests.facts.conftest import deletes_messages
from tests.support.raw import Raw
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.jetstream import DomainApi
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

ACK_POLICIES: Final = ("none", "all", "explicit")
LAST: Final = 7


def start_at(seq: int) -> dict[str, Any]:
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": seq}


def make_consumer(raw: Raw, name: str, stream: str = "I", **config: Any) -> dict[str, Any]:
    body = {"name": name, "durable_name": name, "ack_policy": "explicit"} | config
    raw.api_ok(f"$JS.API.CONSUMER.CREATE.{stream}.{name}", {"stream_name": stream, "config": body})
    return body


def make_stream(raw: Raw, later: dict[str, Any], before: int = 0) -> None:
    """Make an interest stream of seven messages. LATER is created after `before` of them."""
    raw.create("I", subjects=["i.>"], retention="interest", storage="memory")
    make_consumer(raw, "ALL")
    fill(raw, before, ("i.a", "i.b"))
    make_consumer(raw, "LATER", **later)
    fill(raw, LAST - before, ("i.a", "i.b"))


def kept_sequences(raw: Raw) -> list[int]:
    """Return the sequences that the stream holds."""
    state = raw.api_ok("$JS.API.STREAM.INFO.I", {"deleted_details": True})["state"]
    gaps = state.get("deleted") or ()
    spread = range(state["first_seq"], state["last_seq"] + 1) if state["messages"] else ()
    return [seq for seq in spread if seq not in gaps]


# --- what servers do -------------------------------------------------------------------------------


@pytest.mark.parametrize("acks", ACK_POLICIES)
def test_what_is_kept_before_a_start(raw: Raw, server: Server, acks: str) -> None:
    """Up to 2.12 a consumer keeps what is before its start, unless it acknowledges each message."""
    make_stream(raw, {"ack_policy": acks} | start_at(3), before=4)

    raw.api_ok("$JS.API.CONSUMER.DELETE.I.ALL")

    keeps = raw.api_level() < STARTS_COUNT_LEVEL and acks != "explicit"
    wanted = list(range(1 if keeps else 3, LAST + 1))
    server.wait_until(lambda: kept_sequences(raw) == wanted, f"only {wanted} to be kept", 20)


@pytest.mark.parametrize("acks", ACK_POLICIES)
def test_a_start_behind_the_end(raw: Raw, acks: str) -> None:
    """On 2.10 a start behind the end is that end, which INFO shows until the first delivery."""
    make_stream(raw, {"ack_policy": acks} | start_at(6), before=2)
    level, info = raw.api_level(), raw.consumer_info("I", "LATER")

    start = 3 if level < EXACT_START_LEVEL else 6
    assert info["delivered"]["stream_seq"] == start - 1
    assert position_of(info["config"], info, level) == start
    assert pull(raw, "I", "LATER", 1) == [start]
    info = raw.consumer_info("I", "LATER")
    unknown = level < EXACT_START_LEVEL and acks != "none"
    wanted = None if unknown else start + 1 if acks == "none" else start
    assert position_of(info["config"], info, level) == wanted


# --- what is measured ------------------------------------------------------------------------------

#: What LATER may be, besides its ack policy.
STARTS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "new": {"deliver_policy": "new"},
    "last": {"deliver_policy": "last"},
    "last_per_subject": {"deliver_policy": "last_per_subject", "filter_subject": "i.a"},
    "2": start_at(2),
    "5": start_at(5) | {"filter_subject": "i.a"},
    "9": start_at(9),
}
#: How many messages it takes, and the places of those that it acknowledges.
TAKEN: Final = ((0, ()), (3, ()), (3, (0,)), (3, (1,)))


@pytest.mark.parametrize("acks", ACK_POLICIES)
@pytest.mark.parametrize("how", ["deleted", "narrowed", "changed", "made again"])
async def test_what_is_measured(
    raw: Raw, api: DomainApi, server: Server, how: str, acks: str
) -> None:
    """The deleted messages lie between the bounds, for every start and delivery."""
    level = raw.api_level()
    for start, before, (count, places) in itertools.product(STARTS, (0, 3), TAKEN):
        if places and acks == "none":
            continue
        make_stream(raw, {"ack_policy": acks} | STARTS[start], before)
        for place in range(count):
            pull(raw, "I", "LATER", 1, None if place in places else ())
        held = len(kept_sequences(raw))
        changes, requests = CHANGES[how](acks, start)
        address = Address.of_stream("main", "I")
        counts = DeletionRequest(interest="is", was_interest=True, consumers=changes)
        request = MeasurementRequest(address, address, counts)
        found = await measure_deletion(api, request, level)
        least, most = (found.at_least, found.at_most) if found is not None else (0, 0)

        for verb, payload in requests:
            raw.api_ok(f"$JS.API.CONSUMER.{verb}", payload)

        def settled(held: int = held, least: int = least) -> bool:
            return held - len(kept_sequences(raw)) >= least

        checks = how != "changed" or level < ACKS_ABOVE_FLOOR_LEVEL
        if checks:
            what = f"{least} to {most} to be gone ({start}, {before}, {count}, {places})"
            server.wait_until(settled, what, 20)
        assert held - len(kept_sequences(raw)) <= most, (start, before, count, places)
        raw.api_ok("$JS.API.STREAM.DELETE.I")


Requests = list[tuple[str, Any]]


def delete_other(_acks: str, _start: str) -> tuple[tuple[ConsumerChange, ...], Requests]:
    return (ConsumerChange("ALL", "gone"),), [("DELETE.I.ALL", None)]


def update_other(**fields: Any) -> tuple[tuple[ConsumerChange, ...], Requests]:
    config = {"name": "ALL", "durable_name": "ALL", "ack_policy": "explicit"} | fields
    payload = {"stream_name": "I", "config": config}
    return (build_change("ALL", "same", config),), [("CREATE.I.ALL", payload)]


def narrow_other(_acks: str, _start: str) -> tuple[tuple[ConsumerChange, ...], Requests]:
    return update_other(filter_subject="i.b")


def change_other(_acks: str, _start: str) -> tuple[tuple[ConsumerChange, ...], Requests]:
    """Change a field for which only servers before 2.12 look for unwanted messages."""
    return update_other(max_ack_pending=50)


def make_again(acks: str, start: str) -> tuple[tuple[ConsumerChange, ...], Requests]:
    """Delete both, and create one with the start and ack policy of the other."""
    config = {"name": "NEW", "durable_name": "NEW", "ack_policy": acks} | STARTS[start]
    changes = (
        ConsumerChange("ALL", "gone"),
        ConsumerChange("LATER", "gone"),
        build_change("NEW", "start", config),
    )
    create = ("CREATE.I.NEW", {"stream_name": "I", "config": config})
    return changes, [create, ("DELETE.I.LATER", None), ("DELETE.I.ALL", None)]


CHANGES: Final = {
    "deleted": delete_other,
    "narrowed": narrow_other,
    "changed": change_other,
    "made again": make_again,
}


@pytest.mark.since_2_12
@pytest.mark.parametrize("acks", ["all", "explicit"])
@pytest.mark.parametrize("policy", ["new", "last", "by_start_sequence"])
def test_a_replaced_consumer_that_came_later(
    raw: Raw, server: Server, tmp_path: Path, policy: str, acks: str
) -> None:
    """An unknown start is counted back, and a hazard counts what is before it."""
    start = start_at(4) if policy == "by_start_sequence" else {"deliver_policy": policy}
    before: dict[str, Any] = {"name": "ALL", "ack_policy": "explicit"}
    later = {"name": "LATER", "ack_policy": acks} | start
    stream = {"name": "I", "domain": "main", "subjects": ["i.>"], "retention": "interest"}
    space = single_space(tmp_path, server)
    space.write(streams=[stream | {"consumers": [before]}]).apply()
    fill(raw, 3, ("i.a",))
    space.write(streams=[stream | {"consumers": [before, later]}]).apply()
    fill(raw, 4, ("i.a",))
    taken = pull(raw, "I", "LATER", 2)

    space.write(streams=[stream | {"consumers": [later | {"max_waiting": 9}]}])
    plan, result = space.apply(allow_hazards=("DELETES_MESSAGES", "DELETES_CONSUMER"))

    assert result.exit_code == 0
    kept, hazard = kept_sequences(raw), deletes_messages(plan)
    least, most = (0, 0) if hazard is None else (hazard.at_least, hazard.messages)
    if hazard is not None and hazard.exact:
        least = hazard.messages
    assert (least or 0) <= LAST - len(kept) <= (most or 0)
    assert kept[-len(pull(raw, "I", "LATER", LAST)) :][:2] == taken
