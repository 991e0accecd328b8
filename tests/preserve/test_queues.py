"""Streams that become work queues with their messages, as the plan counted."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.preserve.test_streams import PERMITTED, PRESERVE
from tests.support import stream_content
from tests.support.raw import Raw
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.workspaces import left_to_do, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Hazard
    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

Config = dict[str, Any]
ALL = {"name": "C", "ack_policy": "explicit"}
ONE = {"name": "C", "ack_policy": "explicit", "filter_subject": "A.1"}
TWO = {"name": "D", "ack_policy": "explicit", "filter_subjects": ["A.2", "A.0"]}

#: Consumers before; consumers after, or None; per consumer the count delivered and those acknowledged.
CASES: dict[str, tuple[list[Config], list[Config] | None, dict[str, tuple[int, list[int]]]]] = {
    "in order": ([ALL], None, {"C": (8, [1, 2, 3, 4, 5, 6, 7, 8])}),
    "out of order": ([ALL], None, {"C": (8, [1, 2, 4, 5, 6])}),
    "nothing acknowledged": ([ALL], None, {"C": (8, [])}),
    "not the first": ([ALL], None, {"C": (8, [2, 3, 8])}),
    "two with filters": ([ONE, TWO], None, {"C": (4, [1, 2, 4]), "D": (6, [6, 2, 1])}),
    "one of two goes": ([ONE, TWO], [ONE], {"C": (4, [1, 2, 4]), "D": (6, [1, 2, 3])}),
    "one becomes narrower": ([ALL], [ALL | {"filter_subject": "A.1"}], {"C": (9, [1, 2, 3, 7])}),
    "one is replaced": ([ALL | {"max_waiting": 9}], [ALL | {"max_waiting": 7}], {"C": (8, [1, 3, 4])}),
}  # fmt: skip


def bounds(hazards: list[Hazard], code: str) -> tuple[int, int]:
    """Return the least and most messages of all hazards of that code."""
    matching = [hazard for hazard in hazards if hazard.code == code]
    assert len(matching) <= 1
    if not matching:
        return 0, 0
    most = matching[0].messages or 0
    return (most if matching[0].exact else matching[0].at_least or 0), most


def body(consumers: list[Config], **fields: Any) -> Config:
    """The stream with these consumers."""
    return {"name": "A", "subjects": ["A.>"], "consumers": consumers} | PRESERVE | fields


def number_of(payload: bytes) -> int:
    """Return the number of a message, whatever its sequence is now."""
    return int(payload.split()[1])


def numbers(raw: Raw) -> set[int]:
    """Return the numbers of all stored messages."""
    return {number_of(message[3]) for message in stream_content.messages(raw, "A")}


@pytest.mark.parametrize(
    ("case", "holes"),
    [
        *((case, ()) for case in CASES),
        ("not the first", (2, 5, 14)),
        ("two with filters", (2, 5, 14)),
    ],
)
def test_deletions_and_redeliveries_are_as_planned(
    case: str, holes: tuple[int, ...], tmp_path: Path, server: Server
) -> None:
    """The plan counts the messages below each position, and those that are delivered again."""
    before, after, delivered = CASES[case]
    space, acked, again = (
        single_space(tmp_path, server).write(streams=[body(before)]),
        set[int](),
        set[int](),
    )
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        raw.delete("A", *holes)
        for name, (count, acknowledged) in delivered.items():
            replies = raw.pull("A", name, count)
            raw.ack([replies[number - 1] for number in acknowledged])
            acked |= {int(replies[number - 1].split(".")[-4]) - 1 for number in acknowledged}
        before_replace = numbers(raw)
    wanted = body(after or before, retention="workqueue")
    plan, result = space.write(streams=[wanted]).apply(
        allow_hazards=(*PERMITTED, "DELETES_CONSUMER", "LOSES_CONSUMER_POSITION")
    )

    assert result.exit_code == 0, result
    with Raw(server.url) as raw:
        remaining = numbers(raw)
        for consumer in after or before:
            again |= {
                number_of(payload)
                for payload in stream_content.payloads(raw, "A", consumer["name"])
            }
    hazards = next(c.hazards for c in plan.resource_changes if c.address == "main/stream/A")
    assert remaining >= before_replace - acked
    least, most = bounds(hazards, "DELETES_MESSAGES")
    assert least <= len(before_replace - remaining) <= most
    assert least == most or before != [ALL]
    pending = sum(
        count - len(acknowledged)
        for name, (count, acknowledged) in delivered.items()
        if name in {c["name"] for c in after or before}
    )
    least, most = bounds(hazards, "DUPLICATES_MESSAGES")
    assert least <= len(again & acked) + pending <= most
    assert len(again & acked) + pending == most or holes or after


def test_an_unknown_position_gives_bounds(tmp_path: Path, server: Server) -> None:
    """A consumer of new messages without acknowledgements gives bounds instead of a count.

    Up to 2.12 no answer of the server says where it began.
    """
    space = single_space(tmp_path, server).write(streams=[body([])])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)
        space.write(streams=[body([ALL | {"deliver_policy": "new"}])]).apply()
        stream_content.fill(raw, "A", 5)
        raw.pull("A", "C", 3)
    plan, result = space.write(streams=[body([ALL], retention="workqueue")]).apply(
        allow_hazards=PERMITTED
    )

    assert result.exit_code == 0, result
    with Raw(server.url) as raw:
        deleted = 10 - len(stream_content.messages(raw, "A"))
    least, most = bounds(
        next(c.hazards for c in plan.resource_changes if c.address == "main/stream/A"),
        "DELETES_MESSAGES",
    )
    assert least <= deleted <= most


def test_a_start_of_an_earlier_replacement_ends(tmp_path: Path, server: Server) -> None:
    """A consumer that got a start sequence goes into a work queue, which takes only `all`.

    A push consumer gets its position as its start, unless it is copied with its stream (10101).
    """
    push: Config = ONE | {"deliver_subject": "push", "max_ack_pending": 3}
    other: Config = {"name": "D", "ack_policy": "explicit", "lifecycle": {"on_replace": "recreate"}}
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        for retention, filters in (("workqueue", ["A.2"]), ("interest", ["A.0", "A.2"])):
            consumers = [push, other | {"filter_subjects": filters}]
            space.write(streams=[body(consumers, retention=retention)])
            assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
            if retention == "interest":
                continue
            raw.subscribe("push")
            for subject in ("A.2", "A.1"):
                raw.request(subject, b"message")
            raw.request(raw.next_reply(), b"+ACK")
            raw.unsubscribe()
        assert raw.consumer_info("A", "C")["config"]["deliver_policy"] == "by_start_sequence"
        consumers = [push, other | {"filter_subjects": ["A.2"]}]
        space.write(streams=[body(consumers, retention="workqueue")])
        assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
        info = raw.consumer_info("A", "C")
    assert (info["config"]["deliver_policy"], info["num_pending"]) == ("all", 0)
    plan = space.plan()
    assert (left_to_do(plan), plan.resource_drift, plan.steps) == ([], [], [])


@pytest.mark.parametrize("answered", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(
    "request_of",
    ["STREAM.PURGE.A", "CONSUMER.CREATE.A.C", "CONSUMER.CREATE.A.D", "STREAM.UPDATE.A"],
)
def test_death_while_finished_messages_leave(
    request_of: str, answered: bool, tmp_path: Path, server: Server
) -> None:
    """The next apply finishes, and each consumer gets its pending messages."""
    space = single_space(tmp_path, server).write(streams=[body([ONE, TWO])])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 12)
        raw.ack(raw.pull("A", "D", 3))
        raw.pull("A", "C", 2)
    space.write(
        streams=[
            body(
                [
                    ONE | {"filter_subject": None, "filter_subjects": ["A.1", "A.2"]},
                    TWO | {"filter_subjects": ["A.0"]},
                ],
                retention="workqueue",
            )
        ]
    )
    with kill_at_request(request_of, answered=answered), suppress(SimulatedKill):
        space.apply(allow_hazards=PERMITTED)
    _, result = space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 0, [s.error for s in result.steps if s.error]
    with Raw(server.url) as raw:
        got = {
            name: sorted(number_of(found) for found in stream_content.payloads(raw, "A", name))
            for name in "CD"
        }
    assert got == {"C": [1, 4, 5, 7, 8, 10, 11], "D": [6, 9]}
    assert not space.plan().steps
