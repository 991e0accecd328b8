"""Streams of every kind: which are preserved, which are refused, and a failed copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.render import resource_text
from tests.preserve.test_streams import PERMITTED, PRESERVE, level, replace_stream
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.state import read_state
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

pytestmark = pytest.mark.matrix

BASE: dict[str, Any] = {"name": "A", "subjects": ["A.>"]}

LIMITED: dict[str, Any] = {"consumer_limits": {"max_ack_pending": 5}}

#: Before and after, and the API level from which servers have the fields.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "deny-delete": ({"deny_delete": True, "deny_purge": True}, {}, 0),
    "full": ({"max_msgs": 20, "discard": "new"}, {"max_msgs": 20, "discard": "new", "storage": "memory"}, 0),
    "full-in-bytes": ({"max_bytes": 4000}, {"max_bytes": 4000, "storage": "memory"}, 0),
    "largest-message": ({"max_msg_size": 70}, {"max_msg_size": 70, "storage": "memory"}, 0),
    "limits-for-consumers": (LIMITED, LIMITED | {"storage": "memory"}, 0),
    "first-sequence": ({"first_seq": 1000}, {"first_seq": 1000, "storage": "memory"}, 0),
    "no-acknowledgements": ({"no_ack": True}, {"no_ack": True, "storage": "memory"}, 0),
    "message-ttl": ({"allow_msg_ttl": True}, {"allow_msg_ttl": True, "storage": "memory"}, 1),
    "no-more-message-ttl": ({"allow_msg_ttl": True}, {}, 1),
    "no-more-schedules": ({"allow_msg_schedules": True}, {}, 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_streams_of_every_kind(
    kind: str, tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """No special setting of a stream prevents the replacement or loses messages."""
    before, after, needs = KINDS[kind]
    if level(server_version) < needs:
        before, after = {}, {"storage": "memory"}
    space = single_space(tmp_path, server).write(streams=[BASE | before])
    space.apply(allow_hazards=PERMITTED)
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        before_replace = stream_content.messages(raw, "A")
    replace_stream(space, BASE | after | PRESERVE)

    with Raw(server.url) as raw:
        messages = stream_content.messages(raw, "A")
        assert messages == before_replace


def test_a_sealed_stream(tmp_path: Path, server: Server) -> None:
    """A sealed stream is preserved, sealed again in the end, or unsealed on request."""
    space = single_space(tmp_path, server).write(streams=[BASE])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
    space.write(streams=[BASE | {"sealed": True}]).apply(allow_hazards=("IRREVERSIBLE",))
    replace_stream(space, BASE | {"sealed": True, "storage": "memory"} | PRESERVE)

    with Raw(server.url) as raw:
        assert len(stream_content.messages(raw, "A")) == 20
        assert raw.config("A")["sealed"]
    replace_stream(space, BASE | {"storage": "memory"} | PRESERVE)
    with Raw(server.url) as raw:
        assert b"seq" in raw.request("A.x", b"")[1]


def test_messages_with_a_ttl(tmp_path: Path, server: Server) -> None:
    """A message with a TTL keeps its remaining time in the new stream."""
    space = single_space(tmp_path, server).write(streams=[BASE | {"allow_msg_ttl": True}])
    space.apply()
    with Raw(server.url) as raw:
        raw.request("A.short", b"", {"Nats-TTL": "4s"})
        raw.request("A.long", b"", {"Nats-TTL": "1h"})
        replace_stream(space, BASE | {"allow_msg_ttl": True, "storage": "memory"} | PRESERVE)
        server.wait_until(
            lambda: [m[1] for m in stream_content.messages(raw, "A")] == ["A.long"],
            "delete the short one",
            20,
        )


def test_a_mirror(tmp_path: Path, server: Server, server_version: tuple[int, ...]) -> None:
    """A mirror keeps messages that its origin deleted, or is refused before API level 5."""
    origin, mirror = (
        {"name": "X", "subjects": ["X.>"], "max_msgs": 5},
        {"name": "A", "mirror": {"name": "X"}},
    )
    space = single_space(tmp_path, server).write(streams=[origin | {"max_msgs": 100}, mirror])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "X", 20)
        raw.wait_for("A", 20)
    space.write(streams=[origin, mirror]).apply(allow_hazards=("DELETES_MESSAGES",))
    if level(server_version) < 5:
        plan = space.write(streams=[origin, mirror | {"storage": "memory"} | PRESERVE]).plan()
        assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS303"]
        return
    replace_stream(space, origin, mirror | {"storage": "memory"} | PRESERVE)

    with Raw(server.url) as raw:
        raw.request("X.new", b"")
        raw.wait_for("A", 21)


def test_counters(tmp_path: Path, server: Server, server_version: tuple[int, ...]) -> None:
    """A counter is preserved from 2.15 on, and refused before."""
    space = single_space(tmp_path, server).write(streams=[BASE | {"allow_msg_counter": True}])
    space.apply()
    with Raw(server.url) as raw:
        for _ in range(5):
            raw.request("A.total", b"", {"Nats-Incr": "+2"})
    wanted = BASE | {"allow_msg_counter": True, "storage": "memory"} | PRESERVE
    if level(server_version) < 5:
        with pytest.raises(RefusedError, match="the messages of a counter can be kept"):
            space.write(streams=[wanted]).apply(allow_hazards=PERMITTED)
        return
    replace_stream(space, wanted)
    with Raw(server.url) as raw:
        assert b'"val":"12"' in raw.request("A.total", b"", {"Nats-Incr": "+2"})[1]


REFUSED: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "becomes-a-mirror": (
        [{"name": "X"}, BASE], [{"name": "X"}, {"name": "A", "mirror": {"name": "X"}} | PRESERVE],
        "a mirror has its origin's messages, not those that the stream has now",
    ),
    "mirror-of-another": (
        [{"name": "X"}, {"name": "Y"}, {"name": "A", "mirror": {"name": "X"}}],
        [{"name": "X"}, {"name": "Y"}, {"name": "A", "mirror": {"name": "Y"}} | PRESERVE],
        "a mirror of another origin has that one's messages",
    ),
    "refuse": ([BASE], [BASE | {"storage": "memory"}], "on_replace: refuse"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_an_impossible_replacement_is_refused(case: str, tmp_path: Path, server: Server) -> None:
    """A replacement that cannot keep the messages is refused with the reason."""
    before, after, words = REFUSED[case]
    space = single_space(tmp_path, server).write(streams=before)
    space.apply()
    with pytest.raises(RefusedError, match=words):
        space.write(streams=after).apply(allow_hazards=PERMITTED)
    heads = [resource_text.headline(change)[2] for change in space.plan().resource_changes]
    assert ("cannot be replaced with its data carried over" in heads) == (case != "refuse")

    with Raw(server.url) as raw:
        assert "JSPLAN_STAGING" not in " ".join(streams(raw))
        assert read_state(space.folder).replacements == {}


def test_a_failed_copy_restores_the_old_stream(tmp_path: Path, server: Server) -> None:
    """If the staging stream cannot be made, the old stream takes messages again at once."""
    body = BASE | {"consumers": [{"name": "C", "ack_policy": "explicit"}]}
    space = single_space(tmp_path, server).write(streams=[body])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        before = raw.config("A")
    plan = space.write(streams=[body | {"storage": "memory"} | PRESERVE]).plan()
    name = next(
        step.object
        for step in plan.steps
        if step.op == "transfer.mirror" and step.object != step.address
    )
    assert name is not None
    with Raw(server.url) as raw:
        raw.create(name.rsplit("/")[-1])
        _, result = space.apply(allow_hazards=PERMITTED)

        assert [s.error for s in result.steps if s.status == "failed"] == [
            f"{name} was created by another client; nothing was written; the stream was not touched"
        ]
        assert raw.config("A") == before
        assert b"seq" in raw.request("A.again", b"")[1]
        assert stream_content.positions(raw, "A")["C"][3] == 21
        assert read_state(space.folder).replacements == {}
        raw.api_ok(f"$JS.API.STREAM.DELETE.{name.rsplit('/')[-1]}")
    replace_stream(space, body | {"storage": "memory"} | PRESERVE)
