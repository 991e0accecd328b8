"""What the history has of each session that changed something, and how much of it is kept, in every backend."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from jsplan import __version__
from jsplan.documents.schema import schemas
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
from jsplan.state.locks import LockInfo
from jsplan.workflows.history import history
from jsplan.workflows.state import pull
from tests.history.conftest import ALL, apply, document, entries, entry, undo
from tests.support.buckets import new_bucket
from tests.support.raw import Raw
from tests.support.state import hold_lock, local_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.history.conftest import HistorySpace


class SimulatedKill(Exception):
    """What a process does at kill -9: nothing more."""


@contextmanager
def kill_after(
    monkeypatch: pytest.MonkeyPatch, *, lines: int = 1_000, puts: int = 1_000
) -> Iterator[None]:
    """A process that dies once so much is in its journal: lines of any kind, or ends of steps."""
    append, left = LocalBackend.append, {"lines": lines, "puts": puts}

    def mortal(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        left["lines"] -= 1
        left["puts"] -= sum("put" in change for change in changes)
        if min(left.values()) < 0:
            raise SimulatedKill
        append(backend, state, *changes)

    async def gone(backend: LocalBackend, _: State) -> None:
        await backend.close()

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "append", mortal)
        patched.setattr(LocalBackend, "finish", gone)
        yield


@pytest.fixture(params=["local", "kv"])
def any_backend_space(request: pytest.FixtureRequest, history_space: HistorySpace) -> HistorySpace:
    """The place with its state in either backend."""
    if request.param == "kv":
        history_space.space.base["backend"] = {"kv": {"bucket": new_bucket(), "lock_ttl": "30s"}}
    return history_space


def test_an_apply_is_recorded(any_backend_space: HistorySpace) -> None:
    """Who, when, what, with which plan, and how it ended: of an apply, and field by field of what it changed."""
    place = any_backend_space.write({"name": "A", "max_age": "1h"}, {"name": "B"})
    apply(place.space)
    place.write({"name": "A", "max_age": "2h", "description": "x"})
    place.publish("B", 3)
    plan = place.space.plan()
    result = place.space.apply_saved(plan, allow_hazards=("DELETES_STREAM",))
    saved = json.loads((place.space.folder / "saved.plan").read_bytes())
    here, number = LockInfo.for_this_process(""), result.state["serial"]
    found = entry(place.space, number)

    assert [e["id"] for e in entries(place.space)] == [number, number - 1]
    assert {
        name: found[name]
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
    assert found["plan"] == {"id": plan.id, "sha256": saved["sha256"]}
    assert found["at"] <= found["ended"]
    assert (found["summary"]["changed"], found["summary"]["destroyed"]) == (1, 1)
    changed = {c["address"]: c for c in found["changes"]}
    assert {f["path"]: (f["before"], f["after"]) for f in changed["main/stream/A"]["fields"]} == {
        "max_age": (3_600_000_000_000, 7_200_000_000_000),
        "description": ("", "x"),
    }
    assert (changed["main/stream/B"]["actions"], changed["main/stream/B"]["costs"]) == (
        ["delete"],
        [{"code": "DELETES_STREAM", "messages": 3}],
    )


def test_what_has_nothing_to_do_is_not_recorded(history_space: HistorySpace) -> None:
    """An apply without changes writes nothing, and one that only brings state up to date is no entry."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    history_space.space.apply()
    history_space.write({"name": "A", "max_age": "1h", "max_msgs": -1}).space.apply()

    assert [(e["id"], e["operation"]) for e in entries(history_space.space)] == [(1, "apply")]


def test_every_operation(any_backend_space: HistorySpace) -> None:
    """Import, refresh, the state commands, a revert and destroy are entries like any apply."""
    place = any_backend_space
    with Raw(place.server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.OLD", {"name": "OLD", "subjects": ["old"]})
    place.write({"name": "OLD", "subjects": ["old"]}, {"name": "A"})
    assert place.run("import", "main/stream/OLD", "-y").code == 0
    number = apply(place.space)
    place.change_outside("A", max_msgs=7)
    apply(place.space, refresh_only=True)
    assert place.run("state", "rm", "main/stream/OLD").code == 0
    document_ = place.space.folder / "pulled.json"
    document_.write_bytes(pull(place.space.load, number))
    assert place.run("state", "push", "--force", str(document_)).code == 0
    place.write({"name": "OLD", "subjects": ["old"], "max_msgs": 9}, {"name": "A", "max_msgs": 8})
    undo(place.space, apply(place.space))
    apply(place.space, destroy=True)

    told = [(e["operation"], e["result"]) for e in reversed(entries(place.space))]
    assert told == [
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
    by = {e["operation"]: e["id"] for e in entries(place.space)}
    assert [c["address"] for c in entry(place.space, by["state rm"])["changes"]] == [
        "main/stream/OLD"
    ]
    assert [c["address"] for c in entry(place.space, by["state push"])["changes"]] == [
        "main/stream/A",
        "main/stream/OLD",
    ]
    assert [c["address"] for c in entry(place.space, by["refresh"])["changes"]] == ["main/stream/A"]


def test_half_way(history_space: HistorySpace) -> None:
    """An apply of which one step was refused is in the history as partial, with the server's reason at what it refused."""
    apply(history_space.write({"name": "A", "max_age": "1h"}).space)
    plan = history_space.write(
        {"name": "A", "max_age": "2h"}, {"name": "X", "subjects": ["x"]}
    ).space.plan()
    with Raw(history_space.server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.FIRST", {"name": "FIRST", "subjects": ["x"]})
    assert history_space.space.apply_saved(plan).exit_code == 6
    found = entry(history_space.space, 2)

    assert found["result"] == "partial"
    assert {c["address"]: c["status"] for c in found["changes"]} == {
        "main/stream/A": "done",
        "main/stream/X": "failed",
    }
    assert "overlap" in next(c["error"] for c in found["changes"] if c["status"] == "failed")


def test_killed(history_space: HistorySpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply that was killed is in the history as cut off, and can be undone as far as it came."""
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
    """What is there then is neither before nor after: the revert finishes the replacement as what was before."""
    body: dict[str, Any] = {"name": "A", "lifecycle": {"on_replace": "preserve"}}
    apply(history_space.write(body).space)
    history_space.publish("A", 5)
    before = history_space.config("A")
    with kill_after(monkeypatch, lines=8), pytest.raises(SimulatedKill):
        history_space.write(body | {"storage": "memory"}).space.apply(allow_hazards=ALL)
    undo(history_space.space, 2)

    assert history_space.config("A") == before


def test_commands(history_space: HistorySpace) -> None:
    """The table has one line each, an entry its fields; JSON is the document of the schema; an id that is not there says which are."""
    history_space.write()
    assert (
        history_space.run("history").out
        == "Nothing was applied here yet, or only by releases without a history.\n"
    )
    apply(history_space.write({"name": "A"}).space)
    apply(history_space.write({"name": "A", "max_msgs": 5}).space)
    table = history_space.run("history").out.splitlines()
    one = history_space.run("history", "2").out

    assert [line.split()[0] for line in table] == ["ID", "2", "1"]
    assert "1 changed" in table[1]
    assert table[1].endswith("done")
    assert "~ max_msgs: unlimited -> 5" in one
    schema = schemas()["history-v1.json"]
    for args in (("history", "--json"), ("history", "2", "--json")):
        jsonschema.validate(document(history_space.run(*args)), schema)
    changed = schema | {"$ref": "#/$defs/changed"}
    for change in document(history_space.run("history", "2", "--json"))["entries"][0]["changes"]:
        jsonschema.validate(change, {"$defs": schema["$defs"], "$ref": changed["$ref"]})
    jsonschema.validate(json.loads(pull(history_space.space.load)), schemas()["state-v1.json"])
    wrong = history_space.run("history", "9")
    assert (wrong.code, "the history has no entry 9. It has 1 to 2." in wrong.err) == (1, True)


def test_no_secret(history_space: HistorySpace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came from the environment is nowhere in it, also where a server's error repeats it."""
    monkeypatch.setenv("WORD", "hush-hush")
    history_space.space.base["connections"]["main"] |= {"user": "ann", "password": "${env.WORD}"}
    history_space.space.base["drift"] = {
        "sinks": [{"webhook": {"url": "http://127.0.0.1/${env.WORD}"}}]
    }
    history_space.write({"name": "A"}, {"name": "X", "subjects": ["hush-hush"]})
    path = str(history_space.space.folder / "saved.plan")
    assert history_space.run("plan", "-o", path).code == 0
    with Raw(history_space.server.url) as raw:
        raw.api_ok("$JS.API.STREAM.CREATE.FIRST", {"name": "FIRST", "subjects": ["hush-hush"]})
    assert history_space.run("apply", path).code == 6
    told, shown = (
        history_space.run("history", "1", "--json").out,
        history_space.run("history", "1").out,
    )

    assert {c["status"] for c in json.loads(told)["entries"][0]["changes"]} == {"done", "failed"}
    assert ("hush-hush" in told, "hush-hush" in shown) == (False, False)


def test_environments(history_space: HistorySpace) -> None:
    """Each environment has its own history, which says which it is."""
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


# --- what is kept ------------------------------------------------------------------------------------------------


def history_entry(number: int, changes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An entry with nothing but what keeping it looks at."""
    return {"id": number, "operation": "apply", "changes": pack_changes(changes or [])}


def change(number: int) -> dict[str, Any]:
    """What became of one stream."""
    before = {"name": f"S{number}", "subjects": [f"s.{number}"], "max_age": 0}
    said = {
        "address": f"main/stream/S{number}",
        "actions": ["update"],
        "status": "done",
        "reason": "update_because_config_changed",
    }
    return said | {"before": before, "entry": None, "after": None}


def test_the_newest_are_kept() -> None:
    """So many entries, whatever they are; one that is written again takes its own place."""
    known: list[dict[str, Any]] = []
    for number in range(1, MAX_ENTRIES + 11):
        known = with_entry(known, history_entry(number))
    known = with_entry(known, history_entry(MAX_ENTRIES + 10) | {"result": "done"})

    assert [e["id"] for e in known] == list(range(11, MAX_ENTRIES + 11))
    assert known[-1]["result"] == "done"


def test_large_ones_are_packed() -> None:
    """Many changes are kept compressed and come back as they were; what is damaged is said to be."""
    changes = [change(number) for number in range(2_000)]
    one = history_entry(7, changes)

    assert unpack_changes(one) == changes
    assert len(json.dumps(one)) < len(json.dumps(changes)) / 5
    assert unpack_changes(history_entry(8, changes[:3])) == changes[:3]
    size = one["changes"]["bytes"]
    for harmed in (
        {"zlib": "AAAA", "bytes": 3},
        {"zlib": "\u00e9", "bytes": 3},
        one["changes"] | {"bytes": size - 1},
        [{"address": 5}],
    ):
        with pytest.raises(StateError, match="entry 7 of the history is damaged"):
            unpack_changes(one | {"changes": harmed})


def test_the_history_is_bounded() -> None:
    """Beyond that the older entries keep what they say of themselves, without their changes; the newest keeps everything."""
    large = {"zlib": "x" * (MAX_CHANGES_BYTES // 2 + 1)}
    known = with_entry(
        [{"id": 1, "changes": large}, {"id": 2, "changes": large}], history_entry(3, [change(3)])
    )
    assert [
        unpack_changes(e) if isinstance(e["changes"], list) else e["changes"] for e in known
    ] == [None, large, [change(3)]]
    assert (
        with_entry(known, {"id": 4, "changes": {"zlib": "x" * (MAX_CHANGES_BYTES + 1)}})[-1][
            "changes"
        ]
        is not None
    )
    assert COMPRESS_FROM_BYTES < MAX_CHANGES_BYTES


def test_counts_alone_cannot_be_undone(history_space: HistorySpace) -> None:
    """An entry whose changes were given up is shown, and says that it cannot be undone."""
    apply(history_space.write({"name": "A"}).space)
    path = history_space.space.folder / "state" / "test.json"
    raw = json.loads(path.read_bytes())
    raw["history"][0]["changes"] = None
    path.write_text(json.dumps(raw), "utf-8")

    assert "Only the counts of this apply are stored" in history_space.run("history", "1").out
    with pytest.raises(JsplanError, match="of apply 1 only the counts are kept"):
        undo(history_space.space, 1)


def test_states_without_a_history(history_space: HistorySpace) -> None:
    """A state that an earlier release wrote is read, and its history begins with the next apply."""
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


def test_joined() -> None:
    """What is pushed brings what it knows besides; where both know an entry, that of this place counts."""
    here, theirs = (
        [history_entry(2) | {"who": "here"}, history_entry(3)],
        [history_entry(1), history_entry(2) | {"who": "there"}],
    )
    assert [(e["id"], e.get("who")) for e in merge_histories(here, theirs)] == [
        (1, None),
        (2, "here"),
        (3, None),
    ]
