"""The entries of the history in every backend, and their number and size."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from jsplan import __version__
from jsplan.documents.lock import LockInfo
from jsplan.errors import JsplanError, StateError
from jsplan.state import LocalBackend, State
from jsplan.state.history import (
    COMPRESS_FROM_BYTES,
    MAX_CHANGES_BYTES,
    MAX_ENTRIES,
    merge_histories,
    pack_changes,
    unpack_changes,
    with_entry,
)
from jsplan.workflows.history import history
from jsplan.workflows.state import pull
from tests.history.conftest import ALL, apply, document, entries, entry, undo
from tests.support.buckets import new_bucket
from tests.support.raw import Raw
from tests.support.schemas import validator
from tests.support.state import hold_lock, local_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.history.conftest import HistorySpace


class SimulatedKill(Exception):
    """The end of a process by SIGKILL: nothing more runs."""


@contextmanager
def kill_after(
    monkeypatch: pytest.MonkeyPatch, *, lines: int = 1_000, puts: int = 1_000
) -> Iterator[None]:
    """Let a process die after `lines` journal lines or `puts` ends of steps."""
    append, remaining = LocalBackend.append, {"lines": lines, "puts": puts}

    def counting_append(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        remaining["lines"] -= 1
        remaining["puts"] -= sum("put" in change for change in changes)
        if min(remaining.values()) < 0:
            raise SimulatedKill
        append(backend, state, *changes)

    async def close_only(backend: LocalBackend, _: State) -> None:
        await backend.close()

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "append", counting_append)
        patched.setattr(LocalBackend, "finish", close_only)
        yield


@pytest.fixture(params=["local", "kv"])
def any_backend_space(request: pytest.FixtureRequest, history_space: HistorySpace) -> HistorySpace:
    """The workspace with its state in either backend."""
    if request.param == "kv":
        history_space.space.base["backend"] = {"kv": {"bucket": new_bucket(), "lock_ttl": "30s"}}
    return history_space


def test_an_apply_is_recorded(any_backend_space: HistorySpace) -> None:
    """An entry has user, time, operation, plan, result, and the changes field by field."""
    workspace = any_backend_space.write({"name": "A", "max_age": "1h"}, {"name": "B"})
    apply(workspace.space)
    workspace.write({"name": "A", "max_age": "2h", "description": "x"})
    workspace.publish("B", 3)
    plan = workspace.space.plan()
    result = workspace.space.apply_saved(plan, allow_hazards=("DELETES_STREAM",))
    saved = json.loads((workspace.space.folder / "saved.plan").read_bytes())
    here, number = LockInfo.for_this_process(""), result.state["serial"]
    recorded = entry(workspace.space, number)

    assert [e["id"] for e in entries(workspace.space)] == [number, number - 1]
    assert {
        name: recorded[name]
        for name in ("id", "who", "host", "operation", "environment", "result", "jsplan_version")
    } == {
        "id": number,
        "who": here.who,
        "host": here.host,
        "operation": "apply",
        "environment": None,
        "result": "done",
        "jsplan_version": __version__,
    }
    assert recorded["plan"] == {"id": plan.id, "sha256": saved["sha256"]}
    assert recorded["at"] <= recorded["ended"]
    assert (recorded["summary"]["changed"], recorded["summary"]["destroyed"]) == (1, 1)
    changed = {c["address"]: c for c in recorded["changes"]}
    assert {f["path"]: (f["before"], f["after"]) for f in changed["main/stream/A"]["fields"]} == {
        "max_age": (3_600_000_000_000, 7_200_000_000_000),
        "description": ("", "x"),
    }
    assert (changed["main/stream/B"]["actions"], changed["main/stream/B"]["costs"]) == (
        ["delete"],
        [{"code": "DELETES_STREAM", "messages": 3}],
    )


def test_an_apply_without_changes_is_not_recorded(history_space: HistorySpace) -> None:
    """An apply without changes, or only of state, is no entry."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    history_space.space.apply()
    history_space.write({"name": "A", "max_age": "1h", "max_msgs": -1}).space.apply()

    assert [(e["id"], e["operation"]) for e in entries(history_space.space)] == [(1, "apply")]


def test_every_operation(any_backend_space: HistorySpace) -> None:
    """Import, refresh, the state commands, a revert and destroy are entries too."""
    workspace = any_backend_space
    with Raw(workspace.server.url) as raw:
        raw.create("OLD", subjects=["old"])
    workspace.write({"name": "OLD", "subjects": ["old"]}, {"name": "A"})
    assert workspace.run("import", "main/stream/OLD", "-y").code == 0
    number = apply(workspace.space)
    workspace.change_outside("A", max_msgs=7)
    apply(workspace.space, refresh_only=True)
    assert workspace.run("state", "rm", "main/stream/OLD").code == 0
    document_ = workspace.space.folder / "pulled.json"
    document_.write_bytes(pull(workspace.space.load, number))
    assert workspace.run("state", "push", "--force", str(document_)).code == 0
    workspace.write(
        {"name": "OLD", "subjects": ["old"], "max_msgs": 9}, {"name": "A", "max_msgs": 8}
    )
    undo(workspace.space, apply(workspace.space))
    apply(workspace.space, destroy=True)

    listed = [(e["operation"], e["result"]) for e in reversed(entries(workspace.space))]
    assert listed == [
        (name, "done")
        for name in (
            "import",
            "apply",
            "refresh",
            "state rm",
            "state push",
            "apply",
            "revert",
            "destroy",
        )
    ]
    id_by_operation = {e["operation"]: e["id"] for e in entries(workspace.space)}
    assert [
        c["address"] for c in entry(workspace.space, id_by_operation["state rm"])["changes"]
    ] == ["main/stream/OLD"]
    assert [
        c["address"] for c in entry(workspace.space, id_by_operation["state push"])["changes"]
    ] == [
        "main/stream/A",
        "main/stream/OLD",
    ]
    assert [
        c["address"] for c in entry(workspace.space, id_by_operation["refresh"])["changes"]
    ] == ["main/stream/A"]


def test_a_partial_apply_is_recorded(history_space: HistorySpace) -> None:
    """An apply with a refused step is a partial entry, with the reason of the server."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    plan = history_space.write(
        {"name": "A", "max_age": "2h"}, {"name": "X", "subjects": ["x"]}
    ).space.plan()
    with Raw(history_space.server.url) as raw:
        raw.create("FIRST", subjects=["x"])
    assert history_space.space.apply_saved(plan).exit_code == 6
    recorded = entry(history_space.space, 2)

    assert recorded["result"] == "partial"
    assert {c["address"]: c["status"] for c in recorded["changes"]} == {
        "main/stream/A": "done",
        "main/stream/X": "failed",
    }
    assert "overlap" in next(c["error"] for c in recorded["changes"] if c["status"] == "failed")


def test_a_killed_apply_is_recorded(
    history_space: HistorySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed apply is an entry that was cut off, and can be reverted."""
    apply(history_space.write({"name": "A", "max_age": "1h"}, {"name": "B", "max_age": "1h"}).space)
    before = history_space.config("A"), history_space.config("B")
    with kill_after(monkeypatch, puts=1), pytest.raises(SimulatedKill):
        history_space.write(
            {"name": "A", "max_age": "2h"}, {"name": "B", "max_age": "2h"}
        ).space.apply(parallelism=1)
    assert (history_space.config("A"), history_space.config("B")) != before
    assert (entry(history_space.space, 2)["result"], entry(history_space.space, 2)["ended"]) == (
        "started",
        None,
    )
    assert "cut off" in history_space.run("history").out
    with hold_lock(local_state(history_space.space.folder)):
        assert "under way" in history_space.run("history").out
        assert entry(history_space.space, 2)["running"] is True

    undo(history_space.space, 2)
    assert (history_space.config("A"), history_space.config("B")) == before


def test_killed_while_a_stream_is_recreated(
    history_space: HistorySpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A revert finishes an interrupted replacement with the old configuration."""
    body: dict[str, Any] = {"name": "A", "lifecycle": {"on_replace": "preserve"}}
    apply(history_space.write(body).space)
    history_space.publish("A", 5)
    before = history_space.config("A")
    with kill_after(monkeypatch, lines=8), pytest.raises(SimulatedKill):
        history_space.write(body | {"storage": "memory"}).space.apply(allow_hazards=ALL)
    undo(history_space.space, 2)

    assert history_space.config("A") == before


def test_commands(history_space: HistorySpace) -> None:
    """The output has one line per entry, one entry or JSON; an unknown id is an error."""
    history_space.write()
    assert (
        history_space.run("history").out
        == "Nothing was applied here yet, or only by releases without a history.\n"
    )
    apply(history_space.write({"name": "A"}).space)
    apply(history_space.write({"name": "A", "max_msgs": 5}).space)
    table = history_space.run("history").out.splitlines()
    single_entry = history_space.run("history", "2").out

    assert [line.split()[0] for line in table] == ["ID", "2", "1"]
    assert "1 changed" in table[1]
    assert table[1].endswith("done")
    assert "~ max_msgs: unlimited -> 5" in single_entry
    schema = validator("history").schema
    for args in (("history", "--json"), ("history", "2", "--json")):
        jsonschema.Draft202012Validator(schema).validate(document(history_space.run(*args)))
    changed = schema | {"$ref": "#/$defs/ShownChange"}
    for change in document(history_space.run("history", "2", "--json"))["entries"][0]["changes"]:
        jsonschema.Draft202012Validator(
            {"$defs": schema["$defs"], "$ref": changed["$ref"]}
        ).validate(change)
    validator("state").validate(json.loads(pull(history_space.space.load)))
    wrong = history_space.run("history", "9")
    assert (wrong.code, "the history has no entry 9. It has 1 to 2." in wrong.err) == (1, True)


def test_no_secret(history_space: HistorySpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of the environment is in the history, not even in an error of the server."""
    monkeypatch.setenv("WORD", "hush-hush")
    history_space.space.base["connections"]["main"] |= {"user": "ann", "password": "${env.WORD}"}
    history_space.space.base["drift"] = {
        "sinks": [{"webhook": {"url": "http://127.0.0.1/${env.WORD}"}}]
    }
    history_space.write({"name": "A"}, {"name": "X", "subjects": ["hush-hush"]})
    path = str(history_space.space.folder / "saved.plan")
    assert history_space.run("plan", "-o", path).code == 0
    with Raw(history_space.server.url) as raw:
        raw.create("FIRST", subjects=["hush-hush"])
    assert history_space.run("apply", path).code == 6
    listed, text = (
        history_space.run("history", "1", "--json").out,
        history_space.run("history", "1").out,
    )

    assert {c["status"] for c in json.loads(listed)["entries"][0]["changes"]} == {"done", "failed"}
    assert ("hush-hush" in listed, "hush-hush" in text) == (False, False)


def test_environments(history_space: HistorySpace) -> None:
    """Each environment has its own history."""
    history_space.space.base["environments"] = {"staging": {}, "prod": {}}
    history_space.write({"name": "A"})
    assert history_space.run("-e", "staging", "apply", "-y").code == 0
    assert history_space.run("-e", "prod", "history", "--json").out.count('"operation"') == 0
    assert (
        document(history_space.run("-e", "staging", "history", "--json"))["entries"][0][
            "environment"
        ]
        == "staging"
    )


# --- The number and size of entries


def history_entry(number: int, changes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """A minimal entry."""
    return {"id": number, "operation": "apply", "changes": pack_changes(changes or [])}


def change(number: int) -> dict[str, Any]:
    """The change of one stream."""
    before = {"name": f"S{number}", "subjects": [f"s.{number}"], "max_age": 0}
    update = {
        "address": f"main/stream/S{number}",
        "actions": ["update"],
        "status": "done",
        "reason": "update_because_config_changed",
    }
    return update | {"before": before, "entry": None, "after": None}


def test_the_newest_entries_are_kept() -> None:
    """The newest entries are kept, and an entry that is written again keeps its place."""
    kept_entries: list[dict[str, Any]] = []
    for number in range(1, MAX_ENTRIES + 11):
        kept_entries = with_entry(kept_entries, history_entry(number))
    kept_entries = with_entry(kept_entries, history_entry(MAX_ENTRIES + 10) | {"result": "done"})

    assert [e["id"] for e in kept_entries] == list(range(11, MAX_ENTRIES + 11))
    assert kept_entries[-1]["result"] == "done"


def test_large_entries_are_compressed() -> None:
    """Many changes are stored compressed, and a damaged entry is an error."""
    changes = [change(number) for number in range(2_000)]
    single_entry = history_entry(7, changes)

    assert unpack_changes(single_entry) == changes
    assert len(json.dumps(single_entry)) < len(json.dumps(changes)) / 5
    assert unpack_changes(history_entry(8, changes[:3])) == changes[:3]
    size = single_entry["changes"]["bytes"]
    for damaged in (
        {"zlib": "AAAA", "bytes": 3},
        {"zlib": "\u00e9", "bytes": 3},
        single_entry["changes"] | {"bytes": size - 1},
        [{"address": 5}],
    ):
        with pytest.raises(StateError, match="entry 7 of the history is damaged"):
            unpack_changes(single_entry | {"changes": damaged})


def test_the_history_is_bounded() -> None:
    """Above the limit, older entries lose their changes and keep their counts."""
    large = {"zlib": "x" * (MAX_CHANGES_BYTES // 2 + 1)}
    kept_entries = with_entry(
        [{"id": 1, "changes": large}, {"id": 2, "changes": large}], history_entry(3, [change(3)])
    )
    assert [
        unpack_changes(e) if isinstance(e["changes"], list) else e["changes"] for e in kept_entries
    ] == [None, large, [change(3)]]
    assert (
        with_entry(kept_entries, {"id": 4, "changes": {"zlib": "x" * (MAX_CHANGES_BYTES + 1)}})[-1][
            "changes"
        ]
        is not None
    )
    assert COMPRESS_FROM_BYTES < MAX_CHANGES_BYTES


def test_counts_alone_cannot_be_undone(history_space: HistorySpace) -> None:
    """An entry without changes is shown, and cannot be reverted."""
    apply(history_space.write({"name": "A"}).space)
    path = history_space.space.folder / "state" / "test.json"
    raw = json.loads(path.read_bytes())
    raw["history"][0]["changes"] = None
    path.write_text(json.dumps(raw), "utf-8")

    assert "Only the counts of this apply are stored" in history_space.run("history", "1").out
    with pytest.raises(JsplanError, match="of apply 1 only the counts are kept"):
        undo(history_space.space, 1)


def test_states_without_a_history(history_space: HistorySpace) -> None:
    """A state of an earlier release is read; its history begins with the next apply."""
    apply(history_space.write({"name": "A"}).space)
    path = history_space.space.folder / "state" / "test.json"
    raw = json.loads(path.read_bytes())
    del raw["history"]
    path.write_text(json.dumps(raw), "utf-8")

    assert history(history_space.space.load)["entries"] == []
    with pytest.raises(JsplanError, match="there is no entry for an apply 1"):
        undo(history_space.space, 1)
    assert [
        e["id"]
        for e in (
            apply(history_space.write({"name": "A", "max_msgs": 3}).space),
            entries(history_space.space),
        )[1]
    ] == [2]


def test_pushed_entries_are_merged() -> None:
    """Pushed entries are merged, and the own version of an entry wins."""
    here, pushed = (
        [history_entry(2) | {"who": "here"}, history_entry(3)],
        [history_entry(1), history_entry(2) | {"who": "there"}],
    )
    assert [(e["id"], e.get("who")) for e in merge_histories(here, pushed)] == [
        (1, None),
        (2, "here"),
        (3, None),
    ]
