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
from jsplan.state.history import KEPT, PACK_FROM, ROOM, changes_of, joined, packed, remembered
from jsplan.state.locks import LockInfo
from jsplan.workflows.history import history
from jsplan.workflows.state import pull
from tests.history.conftest import ALL, apply, document, entries, entry, undo
from tests.support.buckets import new_bucket
from tests.support.raw import Raw
from tests.support.state import held, local_state

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.history.conftest import Place


class Died(Exception):
    """What a process does at kill -9: nothing more."""


@contextmanager
def dying(monkeypatch: pytest.MonkeyPatch, *, lines: int = 1_000, puts: int = 1_000) -> Iterator[None]:
    """A process that dies once so much is in its journal: lines of any kind, or ends of steps."""
    append, left = LocalBackend.append, {"lines": lines, "puts": puts}

    def mortal(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        left["lines"] -= 1
        left["puts"] -= sum("put" in change for change in changes)
        if min(left.values()) < 0:
            raise Died
        append(backend, state, *changes)

    async def gone(backend: LocalBackend, _: State) -> None:
        await backend.close()

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "append", mortal)
        patched.setattr(LocalBackend, "finish", gone)
        yield


@pytest.fixture(params=["local", "kv"])
def anywhere(request: pytest.FixtureRequest, place: Place) -> Place:
    """The place with its state in either backend."""
    if request.param == "kv":
        place.space.base["backend"] = {"kv": {"bucket": new_bucket(), "lock_ttl": "30s"}}
    return place


def test_an_apply_is_recorded(anywhere: Place) -> None:
    """Who, when, what, with which plan, and how it ended: of an apply, and field by field of what it changed."""
    place = anywhere.write({"name": "A", "max_age": "1h"}, {"name": "B"})
    apply(place.space)
    place.write({"name": "A", "max_age": "2h", "description": "x"})
    place.publish("B", 3)
    plan = place.space.plan()
    result = place.space.apply_saved(plan, allow_hazards=("DELETES_STREAM",))
    saved = json.loads((place.space.folder / "saved.plan").read_bytes())
    here, number = LockInfo.here(""), result.state["serial"]
    found = entry(place.space, number)

    assert [e["id"] for e in entries(place.space)] == [number, number - 1]
    assert {name: found[name] for name in ("id", "who", "host", "operation", "environment", "result", "jsplan_version")} == {
        "id": number, "who": here.who, "host": here.host, "operation": "apply", "environment": None, "result": "done",
        "jsplan_version": __version__,
    }  # fmt: skip
    assert found["plan"] == {"id": plan.id, "sha256": saved["sha256"]}
    assert found["at"] <= found["ended"]
    assert (found["summary"]["changed"], found["summary"]["destroyed"]) == (1, 1)
    changed = {c["address"]: c for c in found["changes"]}
    assert {f["path"]: (f["before"], f["after"]) for f in changed["main/stream/A"]["fields"]} == {
        "max_age": (3_600_000_000_000, 7_200_000_000_000), "description": ("", "x"),
    }  # fmt: skip
    assert (changed["main/stream/B"]["actions"], changed["main/stream/B"]["costs"]) == (
        ["delete"],
        [{"code": "DELETES_STREAM", "messages": 3}],
    )


def test_what_has_nothing_to_do_is_not_recorded(place: Place) -> None:
    """An apply without changes writes nothing, and one that only brings state up to date is no entry."""
    apply(place.write({"name": "A", "max_age": "1h"}).space)
    place.space.apply()
    place.write({"name": "A", "max_age": "1h", "max_msgs": -1}).space.apply()

    assert [(e["id"], e["operation"]) for e in entries(place.space)] == [(1, "apply")]


def test_every_operation(anywhere: Place) -> None:
    """Import, refresh, the state commands, a revert and destroy are entries like any apply."""
    place = anywhere
    with Raw(place.server.url) as raw:
        raw.done("$JS.API.STREAM.CREATE.OLD", {"name": "OLD", "subjects": ["old"]})
    place.write({"name": "OLD", "subjects": ["old"]}, {"name": "A"})
    assert place.run("import", "main/stream/OLD", "-y").code == 0
    number = apply(place.space)
    place.change("A", max_msgs=7)
    apply(place.space, refresh_only=True)
    assert place.run("state", "rm", "main/stream/OLD").code == 0
    document_ = place.space.folder / "pulled.json"
    document_.write_bytes(pull(place.space.load, number))
    assert place.run("state", "push", "--force", str(document_)).code == 0
    place.write({"name": "OLD", "subjects": ["old"], "max_msgs": 9}, {"name": "A", "max_msgs": 8})
    undo(place.space, apply(place.space))
    apply(place.space, destroy=True)

    told = [(e["operation"], e["result"]) for e in reversed(entries(place.space))]
    assert told == [(name, "done") for name in (
        "import", "apply", "refresh", "state rm", "state push", "apply", "revert", "destroy")]  # fmt: skip
    by = {e["operation"]: e["id"] for e in entries(place.space)}
    assert [c["address"] for c in entry(place.space, by["state rm"])["changes"]] == ["main/stream/OLD"]
    assert [c["address"] for c in entry(place.space, by["state push"])["changes"]] == ["main/stream/A", "main/stream/OLD"]
    assert [c["address"] for c in entry(place.space, by["refresh"])["changes"]] == ["main/stream/A"]


def test_half_way(place: Place) -> None:
    """An apply of which one step was refused is in the history as partial, with the server's reason at what it refused."""
    apply(place.write({"name": "A", "max_age": "1h"}).space)
    plan = place.write({"name": "A", "max_age": "2h"}, {"name": "X", "subjects": ["x"]}).space.plan()
    with Raw(place.server.url) as raw:
        raw.done("$JS.API.STREAM.CREATE.FIRST", {"name": "FIRST", "subjects": ["x"]})
    assert place.space.apply_saved(plan).exit_code == 6
    found = entry(place.space, 2)

    assert found["result"] == "partial"
    assert {c["address"]: c["status"] for c in found["changes"]} == {"main/stream/A": "done", "main/stream/X": "failed"}
    assert "overlap" in next(c["error"] for c in found["changes"] if c["status"] == "failed")


def test_killed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apply that was killed is in the history as cut off, and can be undone as far as it came."""
    apply(place.write({"name": "A", "max_age": "1h"}, {"name": "B", "max_age": "1h"}).space)
    before = place.config("A"), place.config("B")
    with dying(monkeypatch, puts=1), pytest.raises(Died):
        place.write({"name": "A", "max_age": "2h"}, {"name": "B", "max_age": "2h"}).space.apply(parallelism=1)
    assert (place.config("A"), place.config("B")) != before
    assert (entry(place.space, 2)["result"], entry(place.space, 2)["ended"]) == ("started", None)
    assert "cut off" in place.run("history").out
    with held(local_state(place.space.folder)):
        assert "under way" in place.run("history").out
        assert entry(place.space, 2)["running"] is True

    undo(place.space, 2)
    assert (place.config("A"), place.config("B")) == before


def test_killed_while_something_is_made_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there then is neither before nor after: the revert finishes the replacement as what was before."""
    body: dict[str, Any] = {"name": "A", "lifecycle": {"on_replace": "preserve"}}
    apply(place.write(body).space)
    place.publish("A", 5)
    before = place.config("A")
    with dying(monkeypatch, lines=8), pytest.raises(Died):
        place.write(body | {"storage": "memory"}).space.apply(allow_hazards=ALL)
    undo(place.space, 2)

    assert place.config("A") == before


def test_commands(place: Place) -> None:
    """The table has one line each, an entry its fields; JSON is the document of the schema; an id that is not there says which are."""
    place.write()
    assert place.run("history").out == "Nothing was applied here yet, or by releases before this one, which kept no history.\n"
    apply(place.write({"name": "A"}).space)
    apply(place.write({"name": "A", "max_msgs": 5}).space)
    table = place.run("history").out.splitlines()
    one = place.run("history", "2").out

    assert [line.split()[0] for line in table] == ["ID", "2", "1"]
    assert "1 changed" in table[1]
    assert table[1].endswith("done")
    assert "~ max_msgs: unlimited -> 5" in one
    schema = schemas()["history-v1.json"]
    for args in (("history", "--json"), ("history", "2", "--json")):
        jsonschema.validate(document(place.run(*args)), schema)
    changed = schema | {"$ref": "#/$defs/changed"}
    for change in document(place.run("history", "2", "--json"))["entries"][0]["changes"]:
        jsonschema.validate(change, {"$defs": schema["$defs"], "$ref": changed["$ref"]})
    jsonschema.validate(json.loads(pull(place.space.load)), schemas()["state-v1.json"])
    wrong = place.run("history", "9")
    assert (wrong.code, "the history has no entry 9. It has 1 to 2." in wrong.err) == (1, True)


def test_no_secret(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """What came from the environment is nowhere in it, also where a server's error repeats it."""
    monkeypatch.setenv("WORD", "hush-hush")
    place.space.base["connections"]["main"] |= {"user": "ann", "password": "${env.WORD}"}
    place.space.base["drift"] = {"sinks": [{"webhook": {"url": "http://127.0.0.1/${env.WORD}"}}]}
    place.write({"name": "A"}, {"name": "X", "subjects": ["hush-hush"]})
    path = str(place.space.folder / "saved.plan")
    assert place.run("plan", "-o", path).code == 0
    with Raw(place.server.url) as raw:
        raw.done("$JS.API.STREAM.CREATE.FIRST", {"name": "FIRST", "subjects": ["hush-hush"]})
    assert place.run("apply", path).code == 6
    told, shown = place.run("history", "1", "--json").out, place.run("history", "1").out

    assert {c["status"] for c in json.loads(told)["entries"][0]["changes"]} == {"done", "failed"}
    assert ("hush-hush" in told, "hush-hush" in shown) == (False, False)


def test_environments(place: Place) -> None:
    """Each environment has its own history, which says which it is."""
    place.space.base["environments"] = {"staging": {}, "prod": {}}
    place.write({"name": "A"})
    assert place.run("-e", "staging", "apply", "-y").code == 0
    assert place.run("-e", "prod", "history", "--json").out.count('"operation"') == 0
    assert document(place.run("-e", "staging", "history", "--json"))["entries"][0]["environment"] == "staging"


# --- what is kept ------------------------------------------------------------------------------------------------


def item(number: int, changes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """An entry with nothing but what keeping it looks at."""
    return {"id": number, "operation": "apply", "changes": packed(changes or [])}


def change(number: int) -> dict[str, Any]:
    """What became of one stream."""
    before = {"name": f"S{number}", "subjects": [f"s.{number}"], "max_age": 0}
    said = {"address": f"main/stream/S{number}", "actions": ["update"], "status": "done", "reason": "update_because_config_changed"}
    return said | {"before": before, "entry": None, "after": None}


def test_the_newest_are_kept() -> None:
    """So many entries, whatever they are; one that is written again takes its own place."""
    known: list[dict[str, Any]] = []
    for number in range(1, KEPT + 11):
        known = remembered(known, item(number))
    known = remembered(known, item(KEPT + 10) | {"result": "done"})

    assert [e["id"] for e in known] == list(range(11, KEPT + 11))
    assert known[-1]["result"] == "done"


def test_large_ones_are_packed() -> None:
    """Many changes are kept compressed and come back as they were; what is damaged is said to be."""
    changes = [change(number) for number in range(2_000)]
    one = item(7, changes)

    assert changes_of(one) == changes
    assert len(json.dumps(one)) < len(json.dumps(changes)) / 5
    assert changes_of(item(8, changes[:3])) == changes[:3]
    size = one["changes"]["bytes"]
    for harmed in ({"zlib": "AAAA", "bytes": 3}, {"zlib": "\u00e9", "bytes": 3}, one["changes"] | {"bytes": size - 1}, [{"address": 5}]):
        with pytest.raises(StateError, match="entry 7 of the history is damaged"):
            changes_of(one | {"changes": harmed})


def test_there_is_room_for_so_much() -> None:
    """Beyond that the older entries keep what they say of themselves, without their changes; the newest keeps everything."""
    large = {"zlib": "x" * (ROOM // 2 + 1)}
    known = remembered([{"id": 1, "changes": large}, {"id": 2, "changes": large}], item(3, [change(3)]))
    assert [changes_of(e) if isinstance(e["changes"], list) else e["changes"] for e in known] == [None, large, [change(3)]]
    assert remembered(known, {"id": 4, "changes": {"zlib": "x" * (ROOM + 1)}})[-1]["changes"] is not None
    assert PACK_FROM < ROOM


def test_counts_alone_cannot_be_undone(place: Place) -> None:
    """An entry whose changes were given up is shown, and says that it cannot be undone."""
    apply(place.write({"name": "A"}).space)
    path = place.space.folder / "state" / "test.json"
    raw = json.loads(path.read_bytes())
    raw["history"][0]["changes"] = None
    path.write_text(json.dumps(raw), "utf-8")

    assert "only the counts are kept" in place.run("history", "1").out
    with pytest.raises(JsplanError, match="of apply 1 only the counts are kept"):
        undo(place.space, 1)


def test_states_without_a_history(place: Place) -> None:
    """A state that an earlier release wrote is read, and its history begins with the next apply."""
    apply(place.write({"name": "A"}).space)
    path = place.space.folder / "state" / "test.json"
    raw = json.loads(path.read_bytes())
    del raw["history"]
    path.write_text(json.dumps(raw), "utf-8")

    assert history(place.space.load)["entries"] == []
    with pytest.raises(JsplanError, match="nothing is known of an apply 1"):
        undo(place.space, 1)
    assert [e["id"] for e in (apply(place.write({"name": "A", "max_msgs": 3}).space), entries(place.space))[1]] == [2]


def test_joined() -> None:
    """What is pushed brings what it knows besides; where both know an entry, that of this place counts."""
    here, theirs = [item(2) | {"who": "here"}, item(3)], [item(1), item(2) | {"who": "there"}]
    assert [(e["id"], e.get("who")) for e in joined(here, theirs)] == [(1, None), (2, "here"), (3, None)]
