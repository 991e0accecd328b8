from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.subjects import is_subset
from tests.facts.conftest import MESSAGES, deletes_messages, lost_counts

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.documents.plan import Hazard
    from tests.facts.conftest import ChangeTrial, FilledServer

pytestmark = pytest.mark.matrix


def check_bounds(hazard: Hazard | None, lost: tuple[int, int]) -> None:
    """Check that the deletions equal an exact hazard, or lie between its bounds."""
    if hazard is None:
        assert lost == (0, 0)
        return
    assert hazard.messages is not None
    assert hazard.bytes is not None
    if hazard.exact:
        assert (hazard.messages, hazard.bytes) == lost
        return
    assert hazard.at_least is not None
    assert hazard.at_least <= lost[0] <= hazard.messages == hazard.at_most
    assert lost[1] <= hazard.bytes


# --- A stream becomes an interest stream


def no_consumer(_lake: FilledServer, _stream: str) -> None:
    """Create no consumer."""


def one_in_order(filled_server: FilledServer, stream: str) -> None:
    """Create a consumer that acknowledged everything that was delivered."""
    filled_server.consumer(stream, "A")
    filled_server.fetch_and_ack(stream, "A", 1_200)


def one_with_holes(filled_server: FilledServer, stream: str) -> None:
    """Create a consumer that left out some messages."""
    filled_server.consumer(stream, "A")
    filled_server.fetch_and_ack(stream, "A", 800, skip=7)


def filters(filled_server: FilledServer, stream: str) -> None:
    """Create two consumers of different subjects; other subjects have no consumer."""
    filled_server.consumer(stream, "A", filter_subject="ORIGIN.a.>")
    filled_server.consumer(stream, "B", filter_subject="ORIGIN.*.1")
    filled_server.fetch_and_ack(stream, "A", 400)
    filled_server.fetch_and_ack(stream, "B", 200, skip=5)


def late_consumers(filled_server: FilledServer, stream: str) -> None:
    """Create a consumer that starts in the middle and one for new messages only."""
    filled_server.consumer(stream, "A", deliver_policy="by_start_sequence", opt_start_seq=1_600)
    filled_server.fetch_and_ack(stream, "A", 100)
    filled_server.consumer(stream, "B", deliver_policy="new")


@pytest.mark.parametrize(
    "consumers", [no_consumer, one_in_order, one_with_holes, filters, late_consumers]
)
@pytest.mark.parametrize("direct", [True, False])
def test_turning_to_interest(
    filled_server: FilledServer,
    change_trial: ChangeTrial,
    consumers: Callable[[FilledServer, str], None],
    direct: bool,
) -> None:
    """A change to interest deletes what all consumers acknowledged, as planned."""
    stream = filled_server.new_mirror(storage="file", allow_direct=direct)
    consumers(filled_server, stream)
    before = filled_server.raw.state(stream)

    _, hazard = change_trial.change(stream, body={"retention": "interest"})

    check_bounds(hazard, lost_counts(before, filled_server.raw.state(stream)))


def test_turning_to_interest_in_order(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """The bound is what is deleted if the consumers acknowledged everything in order."""
    stream = filled_server.new_mirror(storage="file", allow_direct=True)
    one_in_order(filled_server, stream)

    _, hazard = change_trial.change(stream, body={"retention": "interest"})

    assert hazard is not None
    assert (hazard.at_least, hazard.at_most, hazard.causes) == (0, 1_200, ["retention"])


def test_turning_to_interest_without_consumers(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """Server 2.15 deletes everything; older servers keep everything."""
    stream = filled_server.new_mirror(storage="file")

    _, hazard = change_trial.change(stream, body={"retention": "interest"})

    if filled_server.level < 5:
        assert hazard is None
        assert filled_server.raw.state(stream)["messages"] == MESSAGES
    else:
        assert hazard is not None
        assert (hazard.exact, hazard.messages, filled_server.raw.state(stream)["messages"]) == (
            True,
            MESSAGES,
            0,
        )


@pytest.mark.parametrize(
    "limit",
    [{"max_msgs": MESSAGES * 2 // 3}, {"max_bytes": 600_000}, {"max_msgs_per_subject": 20}],
    ids=str,
)
def test_turning_to_interest_under_a_lower_limit(
    filled_server: FilledServer, change_trial: ChangeTrial, limit: dict[str, int]
) -> None:
    """A change to interest with a lower limit is one number with bounds."""
    stream = filled_server.new_mirror(
        storage="file", allow_direct=True, max_msgs_per_subject=MESSAGES
    )
    one_with_holes(filled_server, stream)
    before = filled_server.raw.state(stream)

    _, hazard = change_trial.change(stream, body={"retention": "interest"} | limit)

    assert hazard is not None
    assert set(hazard.causes) == {"retention", *limit}
    check_bounds(hazard, lost_counts(before, filled_server.raw.state(stream)))


# --- Consumers of an interest stream


def interest_stream(
    filled_server: FilledServer, consumers: dict[str, dict[str, Any]], **config: Any
) -> str:
    """Create an interest stream of 4,000 messages with these consumers.

    `{s}` in their fields is the name of the stream.
    """
    stream = f"OWN{filled_server.created_count + 1}"
    filled_server.raw.api_ok(
        f"$JS.API.STREAM.CREATE.{stream}",
        {"name": stream, "subjects": [f"{stream}.>"], "retention": "interest", "allow_direct": True}
        | config,
    )
    for name, wanted in consumers.items():
        filled_server.consumer(
            stream,
            name,
            **{k: v.replace("{s}", stream) if isinstance(v, str) else v for k, v in wanted.items()},
        )
    filled_server.fill_stream(stream, 4_000)
    return stream


def declared(
    filled_server: FilledServer, stream: str, consumers: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    config = filled_server.raw.config(stream)
    current = {k: config[k] for k in ("name", "subjects", "retention", "allow_direct", "storage")}
    listed = [
        {"name": name, "ack_policy": "explicit", "max_ack_pending": -1}
        | {k: v.replace("{s}", stream) if isinstance(v, str) else v for k, v in wanted.items()}
        for name, wanted in consumers.items()
    ]
    return [current | {"consumers": listed}]


Consumers = dict[str, dict[str, Any]]
A_ALL: Consumers
B_ALL: Consumers
A_ALL, A_A, A_B = (
    {"A": {}},
    {"A": {"filter_subject": "{s}.a.>"}},
    {"A": {"filter_subject": "{s}.b.>"}},
)
B_ALL, B_A = {"B": {}}, {"B": {"filter_subject": "{s}.a.>"}}
#: Consumers before and after, and how many of their messages A and B have acknowledged.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], int, int, int]] = {
    "the last one goes": (A_ALL, {}, 1_200, 0, 0),
    "the last one goes, with holes": (A_ALL, {}, 1_200, 0, 7),
    "one of two that want all": (A_ALL | B_ALL, B_ALL, 400, 1_600, 0),
    "one of two, the other with holes": (A_ALL | B_ALL, B_ALL, 0, 1_600, 7),
    "the one who wants more": (A_ALL | B_A, B_A, 100, 50, 0),
    "the one who wants less": (A_A | B_ALL, B_ALL, 100, 50, 0),
    "both": (A_ALL | B_A, {}, 100, 50, 0),
    "a filter narrows": (A_ALL, A_A, 600, 0, 0),
    "a filter narrows, another wants all": (A_ALL | B_ALL, A_A | B_ALL, 600, 0, 0),
    "a filter changes": (A_A, A_B, 100, 0, 0),
    "a filter widens": (A_A | B_ALL, A_ALL | B_ALL, 100, 100, 0),
}  # fmt: skip


def acknowledged_counts(
    stream: str, consumers: dict[str, dict[str, Any]], acked: dict[str, dict[int, str]]
) -> int:
    """Return the number of messages that every interested consumer acknowledged."""
    filters = {
        name: wanted.get("filter_subject", ">").replace("{s}", stream)
        for name, wanted in consumers.items()
    }
    acknowledged = {seq: subject for one in acked.values() for seq, subject in one.items()}
    return sum(
        all(seq in acked.get(name, ()) for name, f in filters.items() if is_subset(subject, f))
        for seq, subject in acknowledged.items()
    )


@pytest.mark.parametrize("change", CHANGES)
def test_deleted_and_changed_consumers(
    filled_server: FilledServer, change_trial: ChangeTrial, change: str
) -> None:
    """Messages without interest are deleted, as the hazards of the consumers say together."""
    before, after, a, b, skip = CHANGES[change]
    stream = interest_stream(filled_server, before)
    change_trial.space.write(streams=declared(filled_server, stream, before))
    assert change_trial.space.apply(adopt=True)[1].exit_code == 0
    published = filled_server.raw.state(stream)["messages"]
    acked = {
        name: filled_server.fetch_and_ack(stream, name, count, skip=skip)
        for name, count in (("A", a), ("B", b))
        if count
    }
    # The stream deletes messages some time after the consumers acknowledged them.
    filled_server.wait_complete(stream, published - acknowledged_counts(stream, before, acked))
    after_acks = filled_server.raw.state(stream)

    change_trial.space.write(streams=declared(filled_server, stream, after))
    plan, result = change_trial.space.apply(allow_hazards=("DELETES_MESSAGES", "DELETES_CONSUMER"))

    assert result.exit_code == 0
    lost = lost_counts(after_acks, filled_server.raw.state(stream))
    hazards = [h for c in plan.resource_changes for h in c.hazards if h.code == "DELETES_MESSAGES"]
    if len(hazards) > 1:
        assert (
            max(h.at_least if h.at_least is not None else h.messages or 0 for h in hazards)
            <= lost[0]
        )
        assert lost[0] <= sum(h.messages or 0 for h in hazards)
    else:
        check_bounds(hazards[0] if hazards else None, lost)


def test_the_last_consumer_has_an_exact_count(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """The hazard of the last consumer has the exact count and the flag that allows it."""
    stream = interest_stream(filled_server, A_ALL)
    change_trial.space.write(streams=declared(filled_server, stream, A_ALL)).apply(adopt=True)
    change_trial.space.write(streams=declared(filled_server, stream, {}))

    hazard = deletes_messages(change_trial.space.plan())

    assert hazard is not None
    assert (hazard.exact, hazard.messages, hazard.bytes) == (
        True,
        4_000,
        filled_server.raw.state(stream)["bytes"],
    )
    assert hazard.flag == f"--allow-hazard DELETES_MESSAGES:main/consumer/{stream}/A"


# --- Origins that a mirror or source consumes


@pytest.mark.parametrize("kind", ["mirror", "sources"])
@pytest.mark.parametrize("filtered", [False, True])
def test_a_mirror_of_a_workqueue_drains_it(
    filled_server: FilledServer, change_trial: ChangeTrial, kind: str, filtered: bool
) -> None:
    """A new mirror or source of a work queue has a hazard with the messages that it may take."""
    stream = filled_server.new_stream(2_000, retention="workqueue")
    origin = {"name": stream} | ({"filter_subject": f"{stream}.a.>"} if filtered else {})
    before = filled_server.raw.state(stream)
    downstream = f"{stream}_COPY"
    change_trial.space.write(
        streams=[{"name": downstream, kind: origin if kind == "mirror" else [origin]}]
    )

    plan, result = change_trial.space.apply(allow_hazards=("DELETES_MESSAGES",))

    assert result.exit_code == 0
    hazard = deletes_messages(plan)
    assert hazard is not None
    assert (hazard.exact, hazard.at_least, hazard.causes) == (False, 0, ["origin"])
    wanted = before["messages"] // 3 + 1 if filtered else before["messages"]
    filled_server.server.wait_until(
        lambda: filled_server.raw.state(downstream)["messages"] >= wanted - 1,
        "the downstream stream to be complete",
        30,
    )
    filled_server.server.wait_until(
        lambda: lost_counts(before, filled_server.raw.state(stream))[0] >= wanted - 1,
        "the origin to be drained",
        30,
    )
    assert (
        lost_counts(before, filled_server.raw.state(stream))[0] <= (hazard.messages or 0) <= wanted
    )


def test_a_mirror_of_a_limits_stream_takes_nothing(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """A mirror of a stream with limits retention is no hazard."""
    change_trial.space.write(streams=[{"name": "HARMLESS", "mirror": {"name": "ORIGIN"}}])

    assert deletes_messages(change_trial.space.plan()) is None


@pytest.mark.parametrize("kind", ["mirror", "sources"])
@pytest.mark.parametrize("consumers", [no_consumer, one_in_order])
def test_turning_to_interest_with_a_downstream_stream(
    filled_server: FilledServer,
    change_trial: ChangeTrial,
    kind: str,
    consumers: Callable[[FilledServer, str], None],
) -> None:
    """A downstream stream may hold back messages, so the deletions have bounds."""
    stream = filled_server.new_stream(2_000, storage="file", allow_direct=True)
    filled_server.consumer(stream, "ALL")
    filled_server.fetch_and_ack(stream, "ALL", 100)
    if consumers is no_consumer:
        filled_server.raw.api_ok(f"$JS.API.CONSUMER.DELETE.{stream}.ALL")
    downstream = {
        "name": "COPYING",
        kind: {"name": stream} if kind == "mirror" else [{"name": stream}],
    }
    filled_server.raw.api_ok("$JS.API.STREAM.CREATE.COPYING", downstream)
    filled_server.wait_complete("COPYING", 2_000)
    before = filled_server.raw.state(stream)
    body = {
        "name": stream,
        "subjects": [f"{stream}.>"],
        "allow_direct": True,
        "retention": "interest",
    }

    plan, result = change_trial.space.write(streams=[body, downstream]).apply(
        adopt=True, allow_hazards=("DELETES_MESSAGES",)
    )

    assert result.exit_code == 0
    hazard, lost = deletes_messages(plan), lost_counts(before, filled_server.raw.state(stream))
    check_bounds(hazard, lost)
    if hazard is not None:
        assert not hazard.exact
