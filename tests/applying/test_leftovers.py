"""Replacements of streams whose old messages the server does not remove when it says so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backup.run import BackupOptions
from jsplan.errors import ApiTimeoutError
from jsplan.jetstream import DomainApi
from jsplan.workflows.backup import backup
from jsplan.workflows.restore import RestoreOptions, restore
from tests.preserve.test_streams import PERMITTED, PRESERVE
from tests.support import stream_content, undeleted_folder
from tests.support.raw import Raw
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, approve, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer

pytestmark = pytest.mark.matrix

ALLOWED = (*PERMITTED, "DELETES_STREAM", "DELETES_CONSUMER")
RECREATE: dict[str, Any] = {"lifecycle": {"on_replace": "recreate"}}
OTHER: dict[str, Any] = {"name": "OTHER", "subjects": ["other"]}
STREAM: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server of its own, because of what it does not remove."""
    return make_server()


def replace_over_leftovers(space: Space, server: Server, name: str, **sections: Any) -> None:
    """Apply a replacement during which the server does not delete the stream `name` at first."""
    with undeleted_folder.until_recreated(server, name) as advisories:
        _, result = space.write(**sections).apply(allow_hazards=ALLOWED, replace=REPLACED[name])
        assert [step.error for step in result.steps if step.error] == []
        assert result.exit_code == 0
        assert result.summary["replaced"] >= 1
        server.wait_until(
            lambda: advisories.count("CREATED") + advisories.count("RESTORE_CREATE") > 1,
            "report that it created the stream twice",
            20,
        )
    again = space.plan()
    assert ([s.title for s in again.steps], [d.summary for d in again.diagnostics]) == ([], [])
    assert read_state(space.folder).replacements == {}


REPLACED = {
    "A": ("main/stream/A",),
    "KV_B": ("main/kv/B",),
    "OBJ_O": ("main/object_store/O",),
}


@pytest.mark.since_2_12
@pytest.mark.parametrize(
    ("name", "section", "entry"),
    [
        ("A", "streams", STREAM),
        ("KV_B", "kv", {"bucket": "B"}),
        ("OBJ_O", "object_stores", {"bucket": "O"}),
    ],
    ids=["stream", "kv", "object-store"],
)
def test_a_recreated_stream_is_empty(
    name: str, section: str, entry: dict[str, Any], tmp_path: Path, server: Server
) -> None:
    """A stream or bucket that is replaced without its messages has none of them."""
    sections = {"streams": [OTHER]}
    sections[section] = [*sections.get(section, ()), entry | RECREATE]
    space = single_space(tmp_path, server).write(**sections)
    space.apply()
    with Raw(server.url) as raw:
        subject = raw.config(name)["subjects"][0]
        for _ in range(3):
            raw.request(subject.replace(">", "x"), b"old")
        replace_over_leftovers(space, server, name, **sections)

        state = raw.state(name)
        assert (state["messages"], state["last_seq"]) == (0, 0)
        raw.request(subject.replace(">", "x"), b"new")
        assert raw.state(name)["last_seq"] == 1


def test_a_restored_backup_is_whole(tmp_path: Path, server: Server) -> None:
    """A stream that is restored over messages which the server did not delete has its backup."""
    space = single_space(tmp_path, server).write(streams=[OTHER, STREAM])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        messages = stream_content.messages(raw, "A")
        folder = tmp_path / "backup"
        backup(space.load, BackupOptions(("**",), folder), RecordingObserver())
        raw.request("A.x", b"later")
        with undeleted_folder.until_recreated(server, "A"):
            raw.api_ok("$JS.API.STREAM.DELETE.A")
            _, result = restore(space.load, RestoreOptions(folder), approve, RecordingObserver())
            assert (result.exit_code, [s.error for s in result.steps if s.error]) == (0, [])
        assert stream_content.messages(raw, "A") == messages


@pytest.mark.since_2_12
@pytest.mark.parametrize("retention", ["limits", "workqueue"])
def test_a_preserved_stream_has_each_message_once(
    retention: str, tmp_path: Path, server: Server
) -> None:
    """A stream that is replaced with its messages has each of them once."""
    before = STREAM | PRESERVE | {"retention": retention}
    space = single_space(tmp_path, server).write(streams=[OTHER, before])
    space.apply()
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 20)
        messages = stream_content.messages(raw, "A")
        replace_over_leftovers(space, server, "A", streams=[OTHER, before])

        assert stream_content.without_sequences(
            stream_content.messages(raw, "A")
        ) == stream_content.without_sequences(messages)
        assert stream_content.positions(raw, "A")["C"][2:] == (0, 20)


@pytest.mark.since_2_12
def test_a_creation_without_an_answer(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A creation whose answer is lost does not count as done over old messages."""
    space = single_space(tmp_path, server).write(streams=[OTHER, STREAM | RECREATE])
    space.apply()
    undeleted_folder.place(server, "A")
    request = DomainApi.request
    with Raw(server.url) as raw:
        stream_content.fill(raw, "A", 5)

        async def lose_answer(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
            if verb != "STREAM.CREATE.A":
                return await request(api, verb, *rest, **options)
            raw.api_ok(f"$JS.API.{verb}", rest[0])
            raise ApiTimeoutError("no answer")

        monkeypatch.setattr(DomainApi, "request", lose_answer)
        _, result = space.apply(allow_hazards=ALLOWED, replace=REPLACED["A"])
        statuses = {
            step.op: step.status for step in result.steps if step.address == "main/stream/A"
        }
        assert statuses == {"stream.delete": "done", "stream.create": "unknown"}
        assert raw.state("A")["messages"] == 5


@pytest.mark.since_2_12
def test_replacements_in_a_loop(tmp_path: Path, server: Server) -> None:
    """Each of many replacements, one directly after the other, leaves an empty stream."""
    entry = STREAM | RECREATE
    space = single_space(tmp_path, server).write(streams=[OTHER, entry])
    space.apply()
    with Raw(server.url) as raw:
        for _ in range(10):
            stream_content.fill(raw, "A", 5)
            _, result = space.apply(allow_hazards=ALLOWED, replace=REPLACED["A"])
            assert result.exit_code == 0
            assert raw.state("A")["last_seq"] == 0
