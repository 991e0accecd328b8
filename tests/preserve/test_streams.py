"""Preserving replacements on real servers, with the means of each version."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.state import read_state
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

PERMITTED = (
    "REMOVES_SUBJECTS",
    "DUPLICATES_MESSAGES",
    "IRREVERSIBLE",
    "DELETES_MESSAGES",
    "BREAKS_REPLICATION",
)
PRESERVE: dict[str, Any] = {"lifecycle": {"on_replace": "preserve"}}
BASE: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "max_age": "1d",
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}

#: The change, from and to, and the API level that it needs. Each needs a new stream.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "storage": ({"storage": "file"}, {"storage": "memory"}, 0),
    "storage-back": ({"storage": "memory"}, {"storage": "file", "compression": "s2"}, 0),
    "queue-becomes-stream": ({"retention": "workqueue"}, {"retention": "limits"}, 0),
    "queue-becomes-interest": ({"retention": "workqueue"}, {"retention": "interest"}, 0),
    "interest-in-memory": ({"retention": "interest"}, {"retention": "interest", "storage": "memory"}, 0),
    "queue-in-memory": ({"retention": "workqueue"}, {"retention": "workqueue", "storage": "memory"}, 0),
    "asynchronous": ({}, {"persist_mode": "async"}, 2),
    "synchronous": ({"persist_mode": "async"}, {}, 2),
    "several-fields": (
        {"description": "old", "deny_delete": True, "max_msgs": 100_000},
        {"storage": "memory", "description": "new", "allow_direct": True, "max_msgs_per_subject": 90_000, "subjects": ["A.>", "B"]},
        0,
    ),
}  # fmt: skip


def level(version: tuple[int, ...]) -> int:
    """Return the API level of a tested server version."""
    return {10: 0, 11: 1, 12: 3, 14: 4, 15: 5}[version[1]]


def replace_stream(space: Space, *bodies: dict[str, Any], tries: int = 1, **sections: Any) -> None:
    """Apply a preserving replacement; no orphan is left, and the next plan is empty.

    `tries`: a busy cluster may leave a request without an answer, and the next apply continues.
    """
    space.write(streams=list(bodies), **sections)
    for _ in range(tries):
        plan, result = space.apply(allow_hazards=PERMITTED)
        failed = [step.error for step in result.steps if step.error]
        if not any("does not answer" in error for error in failed):
            break

    assert failed == []
    assert ["create", "delete"] in [change.change.actions for change in plan.resource_changes]
    assert plan.summary["replace_deletes"] == 0
    assert result.summary["replaced"] >= 1
    again = space.plan()
    assert ([s.title for s in again.steps], [d.summary for d in again.diagnostics]) == ([], [])
    assert read_state(space.folder).replacements == {}


@pytest.mark.parametrize("change", CHANGES)
def test_messages_are_kept(
    change: str, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Messages stay the same; from 2.12 on also sequences, times, headers and gaps."""
    before, after, needs = CHANGES[change]
    if level(server_version) < needs:
        before, after = {}, {"storage": "memory"}
    space = single_space(tmp_path, server)
    space.write(streams=[BASE | before]).apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 300)
        if not before.get("deny_delete"):
            raw.delete("A", 1, 150, 300)
        before_replace = stream_content.messages(raw, "A")
    replace_stream(space, BASE | after | PRESERVE)

    with Raw(server.url) as raw:
        assert streams(raw) == ["A"]
        messages = stream_content.messages(raw, "A")
        assert messages == before_replace
        assert stream_content.positions(raw, "A")["C"][2:] == (0, len(before_replace))
        raw.request("A.new", b"")
        assert stream_content.messages(raw, "A")[-1][1] == "A.new"
        assert stream_content.messages(raw, "A")[-1][0] > before_replace[-1][0]


def test_the_wait_of_publishers_is_announced(tmp_path: Path, server: Server) -> None:
    """The plan says which publishers get no acknowledgement meanwhile."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()

    plan = space.write(streams=[BASE | {"storage": "memory"} | PRESERVE]).plan()

    found = {h.code: h.message for c in plan.resource_changes for h in c.hazards}
    assert "publishers to A.> get no acknowledgement while" in found["REMOVES_SUBJECTS"]


def test_consumers_resume_at_their_position(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """Consumers resume after their floor, unmanaged ones too.

    Archives also keep what was acknowledged above the floor.
    """
    space = single_space(tmp_path, server)
    body = BASE | {
        "consumers": [
            {"name": "C", "ack_policy": "explicit"},
            {"name": "N", "ack_policy": "none"},
            {"name": "F", "filter_subject": "A.1"},
        ]
    }
    space.write(streams=[body]).apply()
    with Raw(server.url) as raw:
        raw.consumer("A", "OTHERS")
        stream_content.fill(raw, "A", 300)
        raw.delete("A", 150)
        acks = raw.pull("A", "C", 60)
        raw.ack([*acks[:40], *acks[50:55]])
        raw.pull("A", "N", 30)
        raw.ack(raw.pull("A", "OTHERS", 100))
        before = stream_content.positions(raw, "A")
        assert before["C"] == (60, 40, 15, 239)
    replace_stream(space, body | {"storage": "memory"} | PRESERVE)

    with Raw(server.url) as raw:
        after = stream_content.positions(raw, "A")
        assert before.keys() == after.keys()
        if level(server_version) >= 5:
            assert after == before
        unread = {name: numbers[2] + numbers[3] for name, numbers in after.items()}
        assert unread == {
            "C": 254 if level(server_version) >= 5 else 259,
            "N": 269,
            "F": 100,
            "OTHERS": 199,
        }
        assert stream_content.payloads(raw, "A", "OTHERS")[0] == b"message 100 " * 3


def test_consumers_change_with_their_stream(tmp_path: Path, server: Server) -> None:
    """Consumers that change in the same plan as their stream end as the files say."""
    space = single_space(tmp_path, server)
    consumers = [
        {"name": name, "ack_policy": "explicit"} for name in ("SAME", "CHANGED", "GONE", "REPLACED")
    ]
    space.write(streams=[BASE | {"consumers": consumers}]).apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 50)
        for name in ("SAME", "CHANGED", "REPLACED"):
            raw.ack(raw.pull("A", name, 10))
    wanted = [
        consumers[0],
        consumers[1] | {"max_deliver": 7},
        consumers[3] | {"ack_policy": "all"},
        {"name": "NEW", "ack_policy": "explicit"},
    ]
    space.write(streams=[BASE | {"storage": "memory", "consumers": wanted} | PRESERVE])
    plan, result = space.apply(allow_hazards=(*PERMITTED, "DELETES_CONSUMER"))

    assert [step.error for step in result.steps if step.error] == []
    assert {
        c.address.rsplit("/")[-1]: c.change.actions
        for c in plan.resource_changes
        if c.type == "consumer"
    } == {
        "REPLACED": ["create", "delete"],
        "CHANGED": ["update"],
        "GONE": ["delete"],
        "SAME": ["no-op"],
        "NEW": ["create"],
    }
    assert [plan.summary[word] for word in ("add", "change", "replace", "destroy")] == [1, 1, 2, 1]
    assert [result.summary[word] for word in ("added", "changed", "replaced", "destroyed")] == [
        1,
        1,
        2,
        1,
    ]
    assert not space.plan().has_changes
    with Raw(server.url) as raw:
        positions = stream_content.positions(raw, "A")
        assert {name: numbers[3] for name, numbers in positions.items()} == {
            "SAME": 40,
            "CHANGED": 40,
            "REPLACED": 40,
            "NEW": 50,
        }
        assert raw.api_ok("$JS.API.CONSUMER.INFO.A.CHANGED")["config"]["max_deliver"] == 7


def test_excluded_consumers_stay_unchanged(tmp_path: Path, server: Server) -> None:
    """With --exclude a consumer comes back unchanged, and its change stays pending."""
    consumer = {"name": "C", "ack_policy": "explicit", "max_deliver": 5, "description": "old"}
    space = single_space(tmp_path, server).write(streams=[BASE | {"consumers": [consumer]}])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 50)
        raw.ack(raw.pull("A", "C", 10))
    changed = {"name": "C", "ack_policy": "explicit", "description": "new"}
    space.write(streams=[BASE | {"storage": "memory", "consumers": [changed]} | PRESERVE])
    _, result = space.apply(allow_hazards=PERMITTED, excludes=("main/consumer/A/C",))

    assert [step.error for step in result.steps if step.error] == []
    with Raw(server.url) as raw:
        config = raw.api_ok("$JS.API.CONSUMER.INFO.A.C")["config"]
        assert (config["description"], config["max_deliver"]) == ("old", 5)
        assert stream_content.positions(raw, "A")["C"][3] == 40
    plan = space.plan()
    assert [
        (c.address, [f.path for f in c.change.fields])
        for c in plan.resource_changes
        if c.change.actions != ["no-op"]
    ] == [("main/consumer/A/C", ["description", "max_deliver"])]
    assert space.apply()[1].exit_code == 0
    assert not space.plan().has_changes


def test_an_empty_stream_continues_its_sequence(tmp_path: Path, server: Server) -> None:
    """An empty stream continues with its next sequence, where sequences can be kept."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        raw.api_ok("$JS.API.STREAM.PURGE.A")
    replace_stream(space, BASE | {"storage": "memory"} | PRESERVE)

    with Raw(server.url) as raw:
        raw.request("A.x", b"")
        assert [m[0] for m in stream_content.messages(raw, "A")] == [21]


def test_a_stream_becomes_a_work_queue(tmp_path: Path, server: Server) -> None:
    """Messages that the consumer acknowledged are deleted and counted; the others stay."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 100)
        raw.ack(raw.pull("A", "C", 30))
    plan = space.write(streams=[BASE | {"retention": "workqueue"} | PRESERVE]).plan()
    hazard = next(
        h for c in plan.resource_changes for h in c.hazards if h.code == "DELETES_MESSAGES"
    )
    assert (hazard.messages, hazard.at_least) == (30, 30)
    replace_stream(space, BASE | {"retention": "workqueue"} | PRESERVE)

    with Raw(server.url) as raw:
        assert len(stream_content.messages(raw, "A")) == 70
        assert stream_content.payloads(raw, "A", "C") == [
            f"message {n} ".encode() * 3 for n in range(30, 100)
        ]


def test_a_stream_with_sources_does_not_copy_them_again(tmp_path: Path, server: Server) -> None:
    """A stream with sources does not copy its messages twice; before 2.12 it is refused."""
    origin = {"name": "X", "subjects": ["X.>"]}
    body = {"name": "A", "subjects": ["A.>"], "sources": [{"name": "X"}]}
    space = single_space(tmp_path, server).write(streams=[origin, body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "X", 50)
        raw.wait_for("A", 50)
    replace_stream(space, origin, body | {"storage": "memory"} | PRESERVE)

    with Raw(server.url) as raw:
        stream_content.fill(raw, "X", 10)
        server.wait_until(
            lambda: raw.state("A")["messages"] >= 60,
            "ten more copied",
        )
        assert stream_content.without_sequences(
            stream_content.messages(raw, "A")
        ) == stream_content.without_sequences(stream_content.messages(raw, "X"))


def test_a_bucket_keeps_its_history(tmp_path: Path, server: Server) -> None:
    """Keys, revisions and deletions are preserved, so that a compare-and-set still works."""
    space = single_space(tmp_path, server).write(kv=[{"bucket": "B", "history": 5}])
    space.apply()
    with Raw(server.url) as raw:
        for number in range(40):
            raw.request(f"$KV.B.key{number % 7}", f"value {number}".encode())
        raw.request("$KV.B.key3", b"", {"KV-Operation": "DEL"})
        before_replace = stream_content.messages(raw, "KV_B")
    space.write(kv=[{"bucket": "B", "history": 5, "storage": "memory"} | PRESERVE])
    _, result = space.apply(allow_hazards=PERMITTED)

    assert [step.error for step in result.steps if step.error] == []
    assert not space.plan().has_changes
    with Raw(server.url) as raw:
        messages = stream_content.messages(raw, "KV_B")
        assert messages == before_replace
        last = next(seq for seq, subject, *_ in reversed(messages) if subject == "$KV.B.key1")
        _, answer = raw.request(
            "$KV.B.key1", b"next", {"Nats-Expected-Last-Subject-Sequence": str(last)}
        )
        assert b"error" not in answer
