"""`position` in the files sets a consumer back or forward, exactly once for each word."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import Address
from jsplan.errors import RefusedError
from jsplan.options import DriftOptions, PlanOptions
from jsplan.resources.server_features import RESET_LEVEL
from jsplan.units import format_instant
from jsplan.workflows.drift import drift
from jsplan.workflows.revert import RevertOptions, revert
from tests.applying.consumer_helpers import fill, pull, stream_sequence, write
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, approve, left_to_do

if TYPE_CHECKING:
    from jsplan.documents.plan import Hazard, Plan
    from jsplan.sandbox import Server

pytestmark = [pytest.mark.matrix, pytest.mark.since_2_12]

CONSUMER = "main/consumer/A/C"
ALLOW = ("DUPLICATES_MESSAGES", "LOSES_CONSUMER_POSITION")


def hazards(plan: Plan) -> dict[str, Hazard]:
    """Return the hazards of the consumer by code."""
    change = next(c for c in plan.resource_changes if c.address == CONSUMER)
    return {hazard.code: hazard for hazard in change.hazards}


def counts(plan: Plan) -> dict[str, tuple[int | None, bool | None]]:
    """Return the number of messages of each hazard, and whether it is exact."""
    return {code: (found.messages, found.exact) for code, found in hazards(plan).items()}


def resets_in_place(space: Space) -> bool:
    """Check whether the server has CONSUMER.RESET."""
    with Raw(space.base["connections"]["main"]["url"]) as raw:
        return raw.api_level() >= RESET_LEVEL


def reset(space: Space, *earlier: str, in_place: bool = True) -> Plan:
    """Apply a plan that sets the consumer, and require that nothing is left to do.

    In place after these `earlier` steps where the server can, else by a replacement.
    """
    created = read_state(space.folder).resources[Address.parse(CONSUMER)].created
    plan, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, result
    in_place = in_place and resets_in_place(space)
    ops = [*earlier, "consumer.reset"] if in_place else ["consumer.replace"]
    assert [step.op for step in plan.steps] == ops
    after = read_state(space.folder).resources[Address.parse(CONSUMER)].created
    assert (after == created) is in_place
    require_converged(space)
    return plan


def require_converged(space: Space) -> None:
    """Require an empty plan, no drift and nothing pending in state."""
    again = space.plan()
    assert left_to_do(again) == []
    assert [d.summary for d in again.diagnostics] == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})


def errors(plan: Plan) -> list[str | None]:
    """Return the codes of the errors of a plan."""
    return [found.code for found in plan.diagnostics if found.severity == "error"]


#: Consumers: what a reset on every server must work with, besides the default.
CONSUMERS: dict[str, dict[str, Any]] = {
    "all": {},
    "new": {"deliver_policy": "new"},
    "last": {"deliver_policy": "last"},
    "by_start_sequence": {"deliver_policy": "by_start_sequence", "opt_start_seq": 8},
    "no acknowledgements": {"ack_policy": "none"},
}


@pytest.mark.parametrize("kind", CONSUMERS)
def test_a_consumer_goes_back_once_for_each_word(kind: str, space: Space, raw: Raw) -> None:
    """As many messages come again as the plan counted, and the same word does nothing more."""
    own = CONSUMERS[kind]
    write(space, **own).apply()
    fill(raw, 30)
    acked = () if own.get("ack_policy") == "none" else None
    pull(raw, "A", "C", 30, acked)
    floor = raw.consumer_info("A", "C")["delivered"]["stream_seq"]
    settable = own.get("deliver_policy", "all") == "all"
    plan = reset(write(space, position={"seq": 5, "once": "one"}, **own), in_place=settable)

    assert floor == 30
    assert counts(plan) == {"DUPLICATES_MESSAGES": (26, True)}
    assert raw.consumer_info("A", "C")["num_pending"] == 26
    assert pull(raw, "A", "C", 100, acked) == list(range(5, 31))
    again = reset(write(space, position={"seq": 30, "once": "two"}, **own))
    assert counts(again) == {"DUPLICATES_MESSAGES": (1, True)}
    assert pull(raw, "A", "C", 100, acked) == [30]
    write(space, **own)
    require_converged(space)


def test_a_push_consumer_goes_back(space: Space, raw: Raw, server: Server) -> None:
    """Its subscribers receive the messages again, without a new one that wakes it up."""
    own: dict[str, Any] = {"deliver_subject": "pushed", "ack_policy": "none"}
    with Raw(server.url) as listener:
        listener.subscribe("pushed")
        write(space, **own).apply()
        fill(raw, 5)
        first = [stream_sequence(listener.next_reply()) for _ in range(5)]
        plan = reset(write(space, position={"seq": 3, "once": "one"}, **own))
        again = [stream_sequence(listener.next_reply()) for _ in range(3)]

    assert first == [1, 2, 3, 4, 5]
    assert counts(plan) == {"DUPLICATES_MESSAGES": (3, True)}
    assert again == [3, 4, 5]


def test_a_waiting_client_receives_what_comes_again(space: Space, raw: Raw, server: Server) -> None:
    """A client that waits for messages gets them, without another request or a new message.

    Where the consumer has to be replaced, the server ends the request.
    """
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 5, None)
    with Raw(server.url) as client:
        client.subscribe("waiting")
        request = json.dumps({"batch": 3, "expires": 60_000_000_000}).encode()
        client.publish("$JS.API.CONSUMER.MSG.NEXT.A.C", request, reply="waiting")
        client.flush()
        reset(write(space, position={"seq": 3, "once": "one"}))
        if not resets_in_place(space):
            assert client.next_message()[1]["Status"] == "409"
            return
        assert [stream_sequence(client.next_reply()) for _ in range(3)] == [3, 4, 5]


def test_a_plan_without_permission_changes_nothing(space: Space, raw: Raw) -> None:
    """The apply refuses, and the plan shows the position and the word."""
    write(space).apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, None)
    plan = write(space, position={"seq": 4, "once": "one"}).plan()
    change = next(c for c in plan.resource_changes if c.address == CONSUMER).change
    with pytest.raises(RefusedError, match="6 messages that the consumer has passed"):
        space.apply()

    assert [(f.path, f.before, f.after) for f in change.fields] == [("position", 10, 4)]
    verb, at = ("set", "to") if resets_in_place(space) else ("replace", "at")
    assert [s.title for s in plan.steps] == [
        f"{verb} consumer C of A in main {at} sequence 4 (one)"
    ]
    assert pull(raw, "A", "C", 100, None) == list(range(10, 31))


@pytest.mark.parametrize("place", ["seq", "new"])
def test_a_consumer_skips_what_the_plan_counted(place: str, space: Space, raw: Raw) -> None:
    """A reset forward counts what is not processed: not delivered, or not acknowledged."""
    write(space).apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, (1, 2, 3, 5, 7))
    where = {"seq": 21} if place == "seq" else {"new": True}
    plan = reset(write(space, position={**where, "once": "one"}))
    fill(raw, 2)

    skipped = {"seq": 15, "new": 25}[place]  # 4, 6, 8, 9, and from 10 on
    assert counts(plan) == {"LOSES_CONSUMER_POSITION": (skipped, True)}
    assert pull(raw, "A", "C", 100, None) == list(range(21 if place == "seq" else 31, 33))


def test_between_floor_and_last_delivery_both_are_counted(space: Space, raw: Raw) -> None:
    """There some messages come again and others are skipped; the server does not say which."""
    write(space).apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, (1, 2, 3, 5, 7))
    plan = reset(write(space, position={"seq": 8, "once": "one"}))
    found = hazards(plan)

    assert counts(plan)["DUPLICATES_MESSAGES"] == (2, True)
    assert (
        found["LOSES_CONSUMER_POSITION"].at_least,
        found["LOSES_CONSUMER_POSITION"].at_most,
    ) == (2, 4)
    assert pull(raw, "A", "C", 100, None) == list(range(8, 31))


def test_filters_and_deleted_messages_are_counted(space: Space, raw: Raw) -> None:
    """Only messages that are stored and that the filter matches count."""
    write(space, filter_subject="a.1").apply()
    fill(raw, 30)
    pull(raw, "A", "C", 10, None)
    for seq in (4, 5, 13):
        raw.api_ok("$JS.API.STREAM.MSG.DELETE.A", {"seq": seq})
    plan = reset(write(space, filter_subject="a.1", position={"seq": 2, "once": "one"}))

    assert counts(plan) == {"DUPLICATES_MESSAGES": (7, True)}
    assert pull(raw, "A", "C", 100, None) == [7, 10, 16, 19, 22, 25, 28]


def test_a_time_is_the_first_message_since(space: Space, raw: Raw) -> None:
    """A consumer that is set to a time receives the messages stored from then on."""
    write(space).apply()
    fill(raw, 10)
    time.sleep(0.01)
    instant = format_instant(time.time_ns())
    time.sleep(0.01)
    fill(raw, 10)
    pull(raw, "A", "C", 20, None)
    plan = reset(write(space, position={"time": instant, "once": "one"}))

    assert counts(plan) == {"DUPLICATES_MESSAGES": (10, True)}
    assert pull(raw, "A", "C", 100, None) == list(range(11, 21))


def test_a_new_consumer_starts_at_its_position(space: Space, raw: Raw) -> None:
    """A consumer that is created starts there, and its word is spent."""
    space.write(streams=[{"name": "A", "subjects": ["a.>"]}]).apply()
    fill(raw, 30)
    plan, result = write(space, position={"seq": 11, "once": "one"}).apply()

    assert result.exit_code == 0
    assert [step.op for step in plan.steps] == ["consumer.create"]
    assert counts(plan) == {}
    require_converged(space)
    assert pull(raw, "A", "C", 100, None) == list(range(11, 31))
    assert left_to_do(write(space).plan()) == []


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_that_delete_what_was_processed_are_refused(
    retention: str, space: Space, raw: Raw
) -> None:
    """There is nothing to deliver again in them."""
    write(space, {"retention": retention}).apply()
    fill(raw, 3)
    plan = write(space, {"retention": retention}, position={"seq": 1, "once": "one"}).plan()

    assert errors(plan) == ["JS499"]


def test_a_sequence_beyond_the_end_is_refused(space: Space, raw: Raw) -> None:
    """A position after the end of the stream is a mistake; the next message is not."""
    write(space).apply()
    fill(raw, 3)

    assert errors(write(space, position={"seq": 5, "once": "one"}).plan()) == ["JS499"]
    assert errors(write(space, position={"seq": 4, "once": "one"}).plan()) == []


def test_a_saved_plan_repeats_nothing_when_it_goes_forward(space: Space, raw: Raw) -> None:
    """A consumer that passed the sequence after the plan was made stays where it is."""
    write(space).apply()
    fill(raw, 30)
    plan = write(space, position={"seq": 11, "once": "one"}).plan(allow_hazards=ALLOW)
    pull(raw, "A", "C", 20, None)
    result = space.apply_saved(plan)

    assert result.exit_code == 0
    assert pull(raw, "A", "C", 100, None) == list(range(21, 31))


def test_other_changes_come_along(space: Space, raw: Raw) -> None:
    """A reset takes changed fields with it, and shows undeclared ones that return to defaults."""
    write(space).apply()
    fill(raw, 10)
    pull(raw, "A", "C", 10, None)
    live = raw.consumer_info("A", "C")["config"] | {"max_ack_pending": 77}
    raw.api_ok(
        "$JS.API.CONSUMER.DURABLE.CREATE.A.C",
        {"stream_name": "A", "config": live, "action": "update"},
    )
    wanted = write(space, ack_wait="7s", position={"seq": 6, "once": "one"})
    plan = reset(wanted, "consumer.update")
    change = next(c for c in plan.resource_changes if c.address == CONSUMER).change
    config = raw.consumer_info("A", "C")["config"]

    assert {f.path for f in change.fields} == {"ack_wait", "max_ack_pending", "position"}
    assert (config["ack_wait"], config["max_ack_pending"]) == (7_000_000_000, 1000)
    assert pull(raw, "A", "C", 100, None) == [6, 7, 8, 9, 10]


def test_a_replacement_for_other_reasons_keeps_the_word(space: Space, raw: Raw) -> None:
    """A consumer that is replaced after its reset is not set again."""
    write(space, position={"seq": 1, "once": "one"}).apply()
    fill(raw, 10)
    pull(raw, "A", "C", 6, None)
    reset(write(space, position={"seq": 1, "once": "one"}, max_waiting=9), in_place=False)

    assert pull(raw, "A", "C", 100, None) == [7, 8, 9, 10]


def test_a_revert_does_not_take_a_reset_back(space: Space, raw: Raw) -> None:
    """The consumer stays where it is, and the revert says so."""
    write(space).apply()
    fill(raw, 10)
    pull(raw, "A", "C", 10, None)
    reset(write(space, position={"seq": 6, "once": "one"}))
    number = read_state(space.folder).serial
    plan, _ = revert(
        space.load,
        RevertOptions(number, planning=PlanOptions(allow_hazards=ALLOW)),
        approve,
        RecordingObserver(),
    )
    said = " ".join(found.summary for found in plan.diagnostics)

    assert "its position stays" in said.lower() or "keeps its position (sequence 6)" in said
    require_converged(space)
    assert pull(raw, "A", "C", 100, None) == [6, 7, 8, 9, 10]


def test_a_stream_that_is_replaced_too_is_refused(space: Space, raw: Raw) -> None:
    """Sequences of a new stream may differ, so the two are applied one after the other."""
    write(space).apply()
    fill(raw, 3)
    stream = {"storage": "memory", "lifecycle": {"on_replace": "preserve"}}

    assert "JS499" in errors(write(space, stream, position={"seq": 1, "once": "one"}).plan())


def test_an_adopted_consumer_is_set_only_with_permission(space: Space, raw: Raw) -> None:
    """A plan that adopts a consumer of others and sets it counts what comes again."""
    write(space).apply()
    fill(raw, 30)
    pull(raw, "A", "C", 30, None)
    (space.folder / "state").rename(space.folder / "old")
    write(space, position={"seq": 1, "once": "one"})

    adopted = space.plan()
    assert counts(adopted) == {"DUPLICATES_MESSAGES": (30, True)}
