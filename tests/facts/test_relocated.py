"""A mirror that becomes the stream itself: the rules on which relocations rest."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from tests.facts.test_leftovers import take_snapshot
from tests.support import stream_content
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix


def mirrored(raw: Raw, server: Server, **origin: Any) -> list[stream_content.Message]:
    """Create A with gaps and a mirror B that is complete; return the messages of A."""
    raw.api_ok("$JS.API.STREAM.CREATE.A", {"name": "A", "subjects": ["A.>"]} | origin)
    stream_content.fill(raw, "A", 40)
    raw.delete("A", 7, 20)
    mirror = {"name": "B", "mirror": {"name": "A"}, "allow_direct": True}
    raw.api_ok("$JS.API.STREAM.CREATE.B", mirror)
    server.wait_until(lambda: raw.state("B")["last_seq"] == 40, "copy all messages")
    return stream_content.messages(raw, "A")


def test_a_promoted_mirror_is_the_same_stream(
    server: Server, server_version: tuple[int, ...]
) -> None:
    """Sequences, times, headers and `created` stay; it takes the freed subjects with one update."""
    with Raw(server.url) as raw:
        before = mirrored(raw, server)
        created = raw.api_ok("$JS.API.STREAM.INFO.B")["created"]
        taken = {"name": "B", "subjects": ["A.>"]}

        refused = raw.api("$JS.API.STREAM.UPDATE.B", taken)["error"]["err_code"]
        assert refused == (10065 if server_version >= (2, 12) else 10055)
        raw.api_ok("$JS.API.STREAM.UPDATE.A", {"name": "A", "subjects": ["parked"]})
        if server_version < (2, 12):
            assert raw.api("$JS.API.STREAM.UPDATE.B", taken)["error"]["err_code"] == 10055
            return
        raw.api_ok("$JS.API.STREAM.UPDATE.B", taken)

        assert stream_content.messages(raw, "B") == before
        assert raw.api_ok("$JS.API.STREAM.INFO.B")["created"] == created
        assert json.loads(raw.request("A.x", b"after")[1])["seq"] == 41


def test_a_mirror_ends_before_the_deleted_end_of_its_origin(server: Server) -> None:
    """A mirror that is created later has no sequence for deleted last messages."""
    with Raw(server.url) as raw:
        mirrored(raw, server)
        raw.delete("A", 39, 40)
        raw.create("C", mirror={"name": "A"})
        raw.wait_for("C", 36)

        assert (raw.state("A")["last_seq"], raw.state("C")["last_seq"]) == (40, 38)
        none = raw.api("$JS.API.STREAM.MSG.GET.A", {"seq": 39, "next_by_subj": ">"})
        assert none["error"]["err_code"] == 10037


def test_a_promoted_mirror_knows_no_message_ids(
    server: Server, server_version: tuple[int, ...]
) -> None:
    """A message with the id of a mirrored one is stored again."""
    if server_version < (2, 12):
        with Raw(server.url) as raw:
            assert raw.api_level() < 2
        return
    with Raw(server.url) as raw:
        raw.create("A", subjects=["A.>"])
        ids = {"Nats-Msg-Id": "one"}
        raw.request("A.x", b"x", ids)
        raw.create("B", mirror={"name": "A"})
        server.wait_until(lambda: raw.state("B")["last_seq"] == 1, "copy the message")
        raw.api_ok("$JS.API.STREAM.UPDATE.A", {"name": "A", "subjects": ["parked"]})
        raw.api_ok("$JS.API.STREAM.UPDATE.B", {"name": "B", "subjects": ["A.>"]})

        answer = json.loads(raw.request("A.x", b"x", ids)[1])

        assert (answer["seq"], answer.get("duplicate", False)) == (2, False)


def test_deletions_of_the_origin_do_not_reach_its_mirror(server: Server) -> None:
    """Messages that are deleted or purged while a mirror follows stay in the mirror."""
    with Raw(server.url) as raw:
        mirrored(raw, server)
        raw.delete("A", 30)
        raw.api_ok("$JS.API.STREAM.PURGE.A", {"seq": 10})
        raw.request("A.x", b"last")
        server.wait_until(lambda: raw.state("B")["last_seq"] == 41, "copy the last message")

        assert (raw.state("A")["messages"], raw.state("B")["messages"]) == (30, 39)


@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_a_mirror_consumes_what_acknowledgements_delete(retention: str, server: Server) -> None:
    """A mirror of an interest stream or a work queue removes its messages."""
    with Raw(server.url) as raw:
        raw.create("A", subjects=["A.>"], retention=retention)
        raw.create("B", mirror={"name": "A"})
        server.wait_until(
            lambda: raw.api_ok("$JS.API.STREAM.INFO.B")["mirror"]["active"] >= 0, "follow A", 60
        )
        for number in range(5):
            raw.request(f"A.{number}", b"x")
        raw.wait_for("B", 5)

        raw.wait_for("A", 0)


def queue(raw: Raw, retention: str) -> list[str]:
    """Create A with consumers C and D and 9 messages; return the ack subjects of 4 of C."""
    config = {"name": "A", "subjects": ["A.>"], "retention": retention}
    raw.api_ok("$JS.API.STREAM.CREATE.A", config)
    subjects = (">", ">") if retention == "interest" else ("A.0", "A.1")
    for name, subject in zip("CD", subjects, strict=True):
        raw.consumer("A", name, filter_subject=subject)
    for number in range(9):
        raw.request(f"A.{number % 2}", b"x")
    return raw.pull("A", "C", 4)


def test_a_quiesced_interest_stream_deletes_nothing(server: Server) -> None:
    """One update takes its subjects and makes it a limits stream; acks then delete nothing.

    With its subjects it gets its retention back, and what all have acknowledged is gone.
    """
    with Raw(server.url) as raw:
        acks = queue(raw, "interest")
        config = raw.config("A")
        raw.api_ok(
            "$JS.API.STREAM.UPDATE.A", config | {"subjects": ["parked"], "retention": "limits"}
        )
        raw.ack(acks)
        raw.ack(raw.pull("A", "D", 4))
        assert raw.state("A")["messages"] == 9

        raw.api_ok("$JS.API.STREAM.UPDATE.A", config)

        raw.wait_for("A", 5)


def test_a_quiesced_work_queue_takes_acknowledgements(
    server: Server, server_version: tuple[int, ...]
) -> None:
    """Acks count without its subjects and while paused; deleting consumers deletes nothing."""
    with Raw(server.url) as raw:
        acks = queue(raw, "workqueue")
        config = raw.config("A")
        raw.api_ok("$JS.API.STREAM.UPDATE.A", config | {"subjects": ["parked"]})
        raw.ack(acks[:2])
        if server_version >= (2, 11):
            until = {"pause_until": "2100-01-01T00:00:00Z"}
            raw.api_ok("$JS.API.CONSUMER.PAUSE.A.C", until)
        raw.ack(acks[2:])
        assert raw.state("A")["messages"] == 5

        for name in "CD":
            raw.api_ok(f"$JS.API.CONSUMER.DELETE.A.{name}")

        assert (raw.state("A")["messages"], raw.state("A")["last_seq"]) == (5, 9)


def test_a_placeholder_holds_what_becomes_an_interest_stream(server: Server) -> None:
    """Nothing is deleted until it leaves; then what no consumer wants is."""
    with Raw(server.url) as raw:
        config = {"name": "A", "subjects": ["parked"]}
        raw.api_ok("$JS.API.STREAM.CREATE.A", config)
        for _ in range(9):
            raw.request("parked", b"x")
        raw.consumer("A", "HOLD")
        raw.api_ok("$JS.API.STREAM.UPDATE.A", config | {"retention": "interest"})
        raw.consumer("A", "C", deliver_policy="by_start_sequence", opt_start_seq=5)
        raw.ack(raw.pull("A", "C", 1))
        assert raw.state("A")["messages"] == 9

        raw.api_ok("$JS.API.CONSUMER.DELETE.A.HOLD")

        raw.wait_for("A", 4)


def schedule(raw: Raw, name: str, seconds: float, stream: str = "A") -> None:
    """Write a schedule that sends a message to A.NAME once, in some seconds."""
    when = datetime.now(UTC) + timedelta(seconds=seconds)
    headers = {
        "Nats-Schedule": f"@at {when.isoformat().replace('+00:00', 'Z')}",
        "Nats-Schedule-Target": f"{stream}.{name}",
    }
    assert b'"seq"' in raw.request(f"{stream}.when.{name}", b"x", headers)[1]


def subjects(raw: Raw, stream: str = "A") -> set[str]:
    """Return the subjects of the messages of a stream."""
    info = raw.api_ok(f"$JS.API.STREAM.INFO.{stream}", {"subjects_filter": ">"})
    return set(info["state"].get("subjects") or ())


@pytest.fixture
def scheduling(server: Server, server_version: tuple[int, ...]) -> Iterator[Raw | None]:
    """A stream A that takes schedules; None before 2.12, which has none."""
    if server_version < (2, 12):
        yield None
        return
    with Raw(server.url) as raw:
        config = {"name": "A", "subjects": ["A.>"], "allow_msg_schedules": True}
        raw.api_ok("$JS.API.STREAM.CREATE.A", config)
        yield raw


def _has_sent(raw: Raw) -> bool:
    return subjects(raw) == {"A.one"}


def update(raw: Raw, **fields: Any) -> dict[str, Any]:
    """Update A, and return the answer."""
    config = raw.config("A")
    return raw.api("$JS.API.STREAM.UPDATE.A", config | fields)


def test_a_quiesced_stream_still_sends_what_is_scheduled(
    scheduling: Raw | None, server: Server
) -> None:
    """Without its subjects it sends all the same, and schedules cannot be turned off."""
    if scheduling is None:
        return
    schedule(scheduling, "one", 1)
    assert "error" not in update(scheduling, subjects=["parked"])
    assert update(scheduling, allow_msg_schedules=False)["error"]["err_code"] == 10052

    server.wait_until(lambda: subjects(scheduling) == {"A.one"}, "send it")


def test_a_schedule_that_was_refused_once_is_not_sent_again(
    scheduling: Raw | None, server: Server
) -> None:
    """A stream that takes no payload sends nothing, and nothing afterwards until a restart.

    So an origin can be stopped from sending, and not be given back as it was.
    """
    if scheduling is None:
        return
    other = {"name": "B", "subjects": ["B.>"], "allow_msg_schedules": True}
    scheduling.api_ok("$JS.API.STREAM.CREATE.B", other)
    schedule(scheduling, "one", 0.5)
    assert "error" not in update(scheduling, max_msg_size=1)
    schedule(scheduling, "later", 1, stream="B")
    server.wait_until(lambda: subjects(scheduling, "B") == {"B.later"}, "send what is due later")
    assert "error" not in update(scheduling, max_msg_size=-1)
    schedule(scheduling, "two", 0.5)
    server.wait_until(lambda: "A.two" in subjects(scheduling), "send the second")

    assert subjects(scheduling) == {"A.when.one", "A.two"}
    server.stop()
    server.start()
    with Raw(server.url) as raw:
        server.wait_until(lambda: subjects(raw) == {"A.one", "A.two"}, "send the first")


def test_a_restored_copy_sends_what_is_scheduled_too(
    scheduling: Raw | None, server: Server, make_server: MakeServer
) -> None:
    """A snapshot has the schedules, so both servers send the message."""
    if scheduling is None:
        return
    schedule(scheduling, "one", 2)
    snapshot, chunks = take_snapshot(server, scheduling, "A")
    with Raw(make_server().url) as other:
        started = other.api_ok(
            "$JS.API.STREAM.RESTORE.A", {key: snapshot[key] for key in ("config", "state")}
        )
        for chunk in chunks:
            other.request(started["deliver_subject"], chunk)
        assert "error" not in json.loads(other.request(started["deliver_subject"], b"")[1])

        for raw in (scheduling, other):
            server.wait_until(partial(_has_sent, raw), "send it")
