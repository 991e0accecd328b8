"""Replaced consumers keep their position: no message is skipped or silently redelivered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.applying.consumer_helpers import (
    fill,
    pull,
    stream_sequence,
    write,
)
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Server

pytestmark = [pytest.mark.matrix, pytest.mark.since_2_12]

PAUSE_UNTIL = "2040-01-01T00:00:00Z"
BY_START = {"deliver_policy": "by_start_sequence"}


def replace_consumer(space: Space, *allow: str) -> Plan:
    """Apply a plan that replaces the consumer, and require that nothing is left to do."""
    plan, result = space.apply(allow_hazards=allow)
    change = next(c for c in plan.resource_changes if c.address == "main/consumer/A/C")
    assert change.change.actions == ["create", "delete"]
    assert result.exit_code == 0, result
    require_converged(space)
    return plan


def require_converged(space: Space) -> None:
    """Require an empty plan, no drift and nothing pending in state."""
    again = space.plan()
    assert left_to_do(again) == []
    # JS476: a consumer that an operator paused is named, and stays paused.
    assert [d.summary for d in again.diagnostics if d.code != "JS476"] == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})


#: Fields that only a new consumer can have: the consumer before and after.
ONLY_NEW: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "ack_policy": ({}, {"ack_policy": "all"}),
    "deliver_policy": ({}, {"deliver_policy": "new"}),
    "deliver_policy to last": ({}, {"deliver_policy": "last"}),
    "deliver_policy to last_per_subject": ({}, {"deliver_policy": "last_per_subject", "filter_subject": "a.>"}),
    "deliver_policy from last_per_subject": ({"deliver_policy": "last_per_subject", "filter_subject": "a.>"}, {"filter_subject": "a.>"}),
    "opt_start_seq earlier": (BY_START | {"opt_start_seq": 3}, BY_START | {"opt_start_seq": 2}),
    "opt_start_seq later": ({}, BY_START | {"opt_start_seq": 25}),
    "opt_start_time": ({}, {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"}),
    "opt_start_time in the future": ({}, {"deliver_policy": "by_start_time", "opt_start_time": "2035-01-01T00:00:00Z"}),
    "replay_policy": ({}, {"replay_policy": "original"}),
    "max_waiting": ({"max_waiting": 10}, {"max_waiting": 20}),
    "durable_name": ({}, {"durable_name": None, "inactive_threshold": "1h"}),
    "durable_name given": ({"durable_name": None, "inactive_threshold": "1h"}, {}),
    "of a memory stream": ({}, {"ack_policy": "all"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ONLY_NEW)
def test_the_new_consumer_resumes_at_the_old_position(name: str, space: Space, raw: Raw) -> None:
    """A replaced consumer delivers all messages after its acknowledgement floor, in order."""
    before, after = ONLY_NEW[name]
    memory = {"storage": "memory"} if "memory" in name else {}
    write(space, memory, **before).apply()
    fill(raw, 30)
    given = pull(raw, "A", "C", 9, None)
    floor = raw.consumer_info("A", "C")["ack_floor"]["stream_seq"]
    plan = replace_consumer(write(space, memory, **after))

    assert given
    assert [s.op for s in plan.steps] == ["consumer.replace"]
    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    assert pull(raw, "A", "C", 100, None) == list(range(floor + 1, 31))
    assert raw.consumer_names("A") == ["C"]


def test_mem_storage_is_converted_by_a_new_consumer(space: Space, raw: Raw) -> None:
    """A consumer that moves from memory to disk is replaced and keeps its position."""
    write(space, mem_storage=True).apply()
    fill(raw, 10)
    pull(raw, "A", "C", 4, None)
    replace_consumer(write(space))

    assert pull(raw, "A", "C", 100) == [5, 6, 7, 8, 9, 10]


def test_without_acknowledgements_it_resumes_after_the_last_delivery(
    space: Space, raw: Raw
) -> None:
    """A consumer without acknowledgements resumes after its last delivery."""
    write(space, ack_policy="none").apply()
    fill(raw, 10)
    pull(raw, "A", "C", 6)
    replace_consumer(write(space))

    assert pull(raw, "A", "C", 100) == [7, 8, 9, 10]


def test_a_consumer_of_new_messages_keeps_those_that_wait(space: Space, raw: Raw) -> None:
    """A replaced consumer with deliver_policy new keeps the messages that wait."""
    write(space, deliver_policy="new").apply()
    fill(raw, 3)
    replace_consumer(write(space, deliver_policy="new", ack_policy="all"))

    assert pull(raw, "A", "C", 100) == [1, 2, 3]


@pytest.mark.parametrize(
    "policy", ["new", "last", "last_per_subject", "by_start_time", "by_start_sequence"]
)
def test_without_an_acknowledgement_it_begins_at_its_start(
    policy: str, space: Space, raw: Raw, server_version: tuple[int, ...]
) -> None:
    """A consumer without acknowledgements is replaced at its original start.

    Servers up to 2.12 report no floor before the first acknowledgement. For last_per_subject they
    report too little, so the new consumer begins with all messages.
    """
    fields: dict[str, Any] = {"filter_subject": "a.*"} if policy == "last_per_subject" else {}
    stream = {"name": "A", "subjects": ["a.>"]}
    space.write(streams=[stream]).apply()
    fill(raw, 6)
    since = raw.api_ok("$JS.API.STREAM.MSG.GET.A", {"seq": 5})["message"]["time"]
    starts: dict[str, Any] = {
        "by_start_time": {"opt_start_time": since},
        "by_start_sequence": {"opt_start_seq": 5},
    }.get(policy, {})
    write(space, deliver_policy=policy, **fields, **starts).apply()
    fill(raw, 3)
    given = pull(raw, "A", "C", 2)
    replace_consumer(write(space, deliver_policy=policy, max_waiting=7, **fields, **starts))

    first = {
        "new": 7,
        "last": 6,
        "last_per_subject": 4,
        "by_start_time": 5,
        "by_start_sequence": 5,
    }[policy]
    assert given == [first, first + 1]
    unknown = policy == "last_per_subject" and server_version < (2, 14)
    assert pull(raw, "A", "C", 100) == list(range(1 if unknown else first, 10))


def test_with_recreate_waiting_messages_are_a_hazard(space: Space, raw: Raw) -> None:
    """With on_replace recreate, the waiting messages are a hazard with their number."""
    write(space, deliver_policy="new").apply()
    fill(raw, 3)
    plan = write(
        space, deliver_policy="new", ack_policy="all", lifecycle={"on_replace": "recreate"}
    ).plan()

    assert [(h.code, h.messages) for c in plan.resource_changes for h in c.hazards] == [
        ("LOSES_CONSUMER_POSITION", 3)
    ]


def test_messages_acknowledged_above_the_floor_are_counted(space: Space, raw: Raw) -> None:
    """Messages acknowledged out of order are a hazard with the number of redeliveries."""
    write(space, filter_subject="a.1").apply()
    fill(raw, 30)  # ten of them on a.1: 1, 4, 7, …
    given = pull(raw, "A", "C", 8, ack=(1, 7, 10, 19))
    plan = write(space, filter_subject="a.1", ack_policy="all").plan()
    hazards = [h for c in plan.resource_changes for h in c.hazards]

    assert given == [1, 4, 7, 10, 13, 16, 19, 22]
    assert [(h.code, h.messages, h.exact) for h in hazards] == [("DUPLICATES_MESSAGES", 3, False)]
    assert "up to 3 messages of C may be delivered again: 3 acknowledged out" in hazards[0].message
    replace_consumer(space, "DUPLICATES_MESSAGES")
    assert pull(raw, "A", "C", 100) == [4, 7, 10, 13, 16, 19, 22, 25, 28]


def test_unacknowledged_messages_are_a_warning(space: Space, raw: Raw) -> None:
    """Redelivery of unacknowledged messages is a warning and not a hazard."""
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3)
    plan = replace_consumer(write(space, ack_policy="all"))

    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    assert [
        "JS423: 3 pending messages may be delivered again, and count as delivered for the first time"
    ] == [f"{d.code}: {d.summary}" for d in plan.diagnostics]
    assert pull(raw, "A", "C", 100) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with another consumer"])
def test_an_interest_stream_loses_nothing(others: bool, space: Space, raw: Raw) -> None:
    """A placeholder consumer holds the messages while the only consumer is replaced."""
    stream = {"retention": "interest"}
    write(space, stream, filter_subject="a.1").apply()
    if others:
        raw.consumer("A", "D", filter_subject="a.2", ack_policy="none")
    fill(raw, 30)
    pull(raw, "A", "C", 3, None)
    replace_consumer(write(space, stream, filter_subject="a.1", ack_policy="all"))

    assert raw.state("A")["messages"] >= 7
    assert pull(raw, "A", "C", 100) == [10, 13, 16, 19, 22, 25, 28]
    assert raw.consumer_names("A") == (["C", "D"] if others else ["C"])


@pytest.mark.parametrize("others", [False, True], ids=["alone", "with another consumer"])
def test_unacknowledged_messages_are_not_called_deleted(
    others: bool, space: Space, raw: Raw
) -> None:
    """Unacknowledged messages of an interest stream stay for the new consumer, without a hazard."""
    stream = {"retention": "interest"}
    write(space, stream).apply()
    if others:
        raw.consumer("A", "D")
    fill(raw, 10)
    pull(raw, "A", "C", 10)
    if others:
        pull(raw, "A", "D", 10, None)
    plan = replace_consumer(write(space, stream, ack_policy="all"))

    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    assert pull(raw, "A", "C", 100) == list(range(1, 11))


def test_a_narrower_filter_of_a_new_consumer_is_measured(space: Space, raw: Raw) -> None:
    """A narrower filter of a replaced consumer is a hazard with the number of deletions."""
    stream = {"retention": "interest"}
    write(space, stream).apply()
    fill(raw, 30)
    plan = write(space, stream, filter_subject="a.1", ack_policy="all").plan()
    assert [(h.code, h.messages) for c in plan.resource_changes for h in c.hazards] == [
        ("DELETES_MESSAGES", 20)
    ]
    replace_consumer(space, "DELETES_MESSAGES")

    assert raw.state("A")["messages"] == 10


def test_at_the_consumer_limit_the_replacement_is_refused(space: Space, raw: Raw) -> None:
    """A replacement without capacity for a placeholder consumer is refused."""
    stream = {"retention": "interest", "max_consumers": 1}
    write(space, stream).apply()
    fill(raw, 3)
    plan = write(space, stream, ack_policy="all").plan()

    assert ["placeholder" in d.summary for d in plan.diagnostics if d.code == "JS303"] == [True]
    assert not plan.applyable


def test_a_work_queue_keeps_what_is_not_acknowledged(space: Space, raw: Raw) -> None:
    """A replaced consumer of a work queue receives everything that is not acknowledged."""
    stream = {"retention": "workqueue"}
    write(space, stream).apply()
    fill(raw, 10)
    pull(raw, "A", "C", 6, ack=(1, 2, 5))
    plan = replace_consumer(write(space, stream, max_waiting=7))

    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    assert pull(raw, "A", "C", 100) == [3, 4, 6, 7, 8, 9, 10]


def test_a_start_that_apply_decides_is_unknown_in_the_plan(space: Space, raw: Raw) -> None:
    """The start of a consumer is unknown in a plan that also deletes messages."""
    write(space, deliver_policy="new").apply()
    fill(raw, 10)
    pull(raw, "A", "C", 4, None)
    plan = write(space, {"max_msgs": 3}, deliver_policy="last").plan(
        allow_hazards=("DELETES_MESSAGES",)
    )
    change = next(c for c in plan.resource_changes if c.address == "main/consumer/A/C").change

    assert [*change.after_unknown] == ["deliver_policy", "opt_start_seq"]
    assert change.after is not None
    result = space.apply_saved(plan)
    live = raw.consumer_info("A", "C")["config"]
    assert result.exit_code == 0
    assert {
        name for name in live if live[name] != change.after.get(name) and name != "metadata"
    } <= set(change.after_unknown)


@pytest.fixture
def listener(server: Server) -> Iterator[Raw]:
    """Subscribe to the subject to which the consumer pushes."""
    with Raw(server.url) as connection:
        connection.subscribe("push.c")
        yield connection


def read_pushed(listener: Raw, count: int, *, ack: bool = False) -> list[int]:
    """Return the sequences of the next pushed messages, without heartbeats and flow control."""
    sequences: list[int] = []
    while len(sequences) < count:
        try:
            reply = listener.next_reply()
        except AssertionError:
            continue
        if reply.startswith("$JS.ACK."):
            sequences.append(stream_sequence(reply))
            listener.publish(reply, b"+ACK") if ack else None
    return sequences


def has_floor(raw: Raw, floor: int) -> bool:
    """Ask repeatedly until the acknowledgement floor is reached."""
    return any(
        raw.consumer_info("A", "C")["ack_floor"]["stream_seq"] == floor for _ in range(10_000)
    )


@pytest.mark.parametrize("policy", ["all", "new"])
def test_a_push_consumer_resumes_to_its_listeners(
    policy: str, space: Space, raw: Raw, listener: Raw
) -> None:
    """A replaced push consumer delivers to the same subscribers from its old position."""
    write(space, deliver_subject="push.c", deliver_policy=policy).apply()
    fill(raw, 3)
    assert read_pushed(listener, 3, ack=True) == [1, 2, 3]
    assert has_floor(raw, 3)
    replace_consumer(
        write(
            space,
            deliver_subject="push.c",
            deliver_policy=policy,
            flow_control=True,
            idle_heartbeat="5s",
        )
    )
    fill(raw, 2)

    assert read_pushed(listener, 2) == [4, 5]


def test_a_pull_consumer_becomes_a_push_consumer_and_resumes(
    space: Space, raw: Raw, listener: Raw
) -> None:
    """A pull consumer that becomes a push consumer pushes from the old position."""
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3, None)
    assert has_floor(raw, 3)
    replace_consumer(write(space, deliver_subject="push.c"))

    assert read_pushed(listener, 2) == [4, 5]


def test_a_push_consumer_becomes_a_pull_consumer_and_resumes(
    space: Space, raw: Raw, listener: Raw
) -> None:
    """A push consumer that becomes a pull consumer redelivers its unacknowledged messages."""
    write(space, deliver_subject="push.c").apply()
    fill(raw, 5)
    assert read_pushed(listener, 5) == [1, 2, 3, 4, 5]
    replace_consumer(write(space))

    assert pull(raw, "A", "C", 100) == [1, 2, 3, 4, 5]


def test_a_pause_of_the_files_is_set_after_the_replacement(space: Space, raw: Raw) -> None:
    """The pause of the files replaces the pause that holds a consumer during its replacement."""
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3, None)
    replace_consumer(write(space, ack_policy="all", pause_until=PAUSE_UNTIL))

    assert raw.consumer_info("A", "C")["config"]["pause_until"] == PAUSE_UNTIL
    assert raw.consumer_info("A", "C")["num_pending"] == 2


def test_a_pause_set_outside_jsplan_stays(space: Space, raw: Raw) -> None:
    """A pause that an operator set outside jsplan survives the replacement."""
    write(space).apply()
    raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C", {"pause_until": PAUSE_UNTIL})
    replace_consumer(write(space, ack_policy="all"))

    assert raw.consumer_info("A", "C")["config"]["pause_until"] == PAUSE_UNTIL


def test_a_start_that_jsplan_set_is_kept_through_updates(space: Space, raw: Raw) -> None:
    """Updates and refreshes keep the start that jsplan set, unless the files change it."""
    write(space, deliver_policy="new").apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3, None)
    replace_consumer(write(space, deliver_policy="new", ack_policy="all"))
    start = raw.consumer_info("A", "C")["config"]
    plan, result = write(space, deliver_policy="new", ack_policy="all", description="x").apply()

    assert "consumer.update" in {s.op for s in plan.steps}
    assert not {"consumer.create", "consumer.replace"} & {s.op for s in plan.steps}
    assert result.exit_code == 0
    require_converged(space)
    assert {
        n: raw.consumer_info("A", "C")["config"].get(n) for n in ("deliver_policy", "opt_start_seq")
    } == {n: start.get(n) for n in ("deliver_policy", "opt_start_seq")}
    _, refreshed = space.apply(refresh_only=True)
    assert refreshed.exit_code == 0
    require_converged(space)
    changed = write(space, deliver_policy="all", ack_policy="all", description="x").plan()
    assert [c.change.actions for c in changed.resource_changes if c.type == "consumer"] == [
        ["create", "delete"]
    ]


def test_replace_by_request_keeps_the_position(space: Space, raw: Raw) -> None:
    """`--replace` of a consumer keeps its position, as on_replace preserve says."""
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3, None)
    created = raw.consumer_info("A", "C")["created"]
    _, result = space.apply(replace=("main/consumer/A/C",))

    assert result.exit_code == 0
    assert raw.consumer_info("A", "C")["created"] != created
    assert pull(raw, "A", "C", 100) == [4, 5]
    require_converged(space)


def test_a_policy_that_changes_is_explained(space: Space, raw: Raw) -> None:
    """A changed deliver_policy without effect is reported, with on_replace recreate as the way."""
    write(space).apply()
    fill(raw, 5)
    pull(raw, "A", "C", 3, None)
    plan = write(space, deliver_policy="new").plan()

    assert [(d.code, d.summary) for d in plan.diagnostics] == [
        ("JS423", "keeps its position (sequence 4): its new start has no effect")
    ]
    assert "on_replace: recreate" in plan.diagnostics[0].detail
