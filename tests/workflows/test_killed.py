"""Promise 7: whenever an apply dies, plan and apply continue from what it left, and state owns all that was created."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.state import LocalBackend, State
from jsplan.workflows.drift import drift
from jsplan.workflows.options import DriftOptions
from tests.support.process import begin, jsplan
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.state import read_state
from tests.support.workspaces import Quiet, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

BEFORE: list[dict[str, Any]] = [
    {"name": "KEPT", "max_age": "1d", "consumers": [{"name": "ONE"}]},
    {"name": "REPLACED", "storage": "file", "consumers": [{"name": "ONE"}]},
    {"name": "GONE"},
    {"name": "SWAP_A", "subjects": ["a"]},
    {"name": "SWAP_B", "subjects": ["b"]},
]
AFTER: list[dict[str, Any]] = [
    {"name": "KEPT", "max_age": "2d", "consumers": [{"name": "ONE", "max_deliver": 3}, {"name": "TWO"}]},
    {"name": "REPLACED", "storage": "memory", "lifecycle": {"on_replace": "recreate"}, "consumers": [{"name": "ONE"}]},
    {"name": "SWAP_A", "subjects": ["b"]},
    {"name": "SWAP_B", "subjects": ["a"]},
    {"name": "NEW", "description": "made by a dying process"},
]
PERMITTED = ("DELETES_STREAM", "REMOVES_SUBJECTS")


class Died(Exception):
    """What a process does at kill -9: nothing more, not even its clean-up."""


class Mortal:
    """Lets the n-th line of the journal, and everything after it, never be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lines: int) -> None:
        self.left = lines
        write = LocalBackend.append

        def append(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
            if self.left <= 0:
                raise Died
            self.left -= 1
            write(backend, state, *changes)

        async def finish(backend: LocalBackend, _: State) -> None:
            await backend.close()

        monkeypatch.setattr(LocalBackend, "append", append)
        monkeypatch.setattr(LocalBackend, "finish", finish)


def owned(space: Space) -> set[str]:
    """What state says that this workspace has, nothing pending."""
    state = read_state(space.folder)
    assert state.pending == {}
    return {str(address) for address in state.resources}


def declared(*bodies: dict[str, Any]) -> set[str]:
    """The addresses of some streams and their consumers."""
    consumers = {f"main/consumer/{body['name']}/{c['name']}" for body in bodies for c in body.get("consumers", [])}
    return {f"main/stream/{body['name']}" for body in bodies} | consumers


def lines_of_a_whole_apply(space: Space) -> int:
    """How often a process could die in it: once before each line of its journal."""
    with pytest.MonkeyPatch.context() as patch:
        mortal = Mortal(patch, 1000)
        space.apply(allow_hazards=PERMITTED)
        return 1000 - mortal.left


def fresh(space: Space, server: Server) -> None:
    """What was before the apply, on a clean server."""
    with Raw(server.url) as raw:
        delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    space.write(streams=BEFORE).apply()
    space.write(streams=AFTER)


def test_death_before_every_line_of_the_journal(tmp_path: Path, server: Server) -> None:
    """Wherever it dies, the next apply needs no --adopt, ends as if nothing had happened, and the plan after it is empty."""
    space = single_space(tmp_path, server)
    fresh(space, server)
    total = lines_of_a_whole_apply(space)
    assert total > 15

    for lines in range(1, total - 1):  # one line less where a domain was seen in the same second before
        fresh(space, server)
        with pytest.MonkeyPatch.context() as patch:
            Mortal(patch, lines)
            with pytest.raises(Died):
                space.apply(allow_hazards=PERMITTED, parallelism=1)
        found = drift(space.load, DriftOptions(), Quiet())
        half_done = {"main/consumer/REPLACED/ONE", "main/stream/SWAP_A"}  # went with its stream; parked its subject
        assert {r.address for r in found.resource_drift} <= half_done, lines
        assert found.unmanaged == []
        _, result = space.apply(allow_hazards=PERMITTED)

        assert result.exit_code == 0, (lines, result)
        assert owned(space) == declared(*AFTER), lines
        assert [step.title for step in space.plan().steps] == [], lines


@pytest.mark.parametrize(("then", "action"), [([{"name": "A", "max_msgs": 9}], "update"), ([], "delete")], ids=["changed", "left"])
def test_what_a_dead_apply_created_is_ours(tmp_path: Path, server: Server, then: list[dict[str, Any]], action: str) -> None:
    """After a death the files may change first: what was created is updated without --adopt, and deleted when it left the files."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A", "max_msgs": 5}])
    die_after_the_call(space)
    plan, result = space.write(streams=then).apply(allow_hazards=PERMITTED)

    assert [change.change.actions for change in plan.resource_changes] == [[action]]
    assert result.exit_code == 0
    assert not space.plan().has_changes


def test_somebody_elses_stream_is_not_taken_for_ours(tmp_path: Path, server: Server) -> None:
    """Where the create of a dead apply never arrived and somebody else made the stream, it is theirs, and stays so."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A", "max_msgs": 5}])
    die_after_the_call(space)
    with Raw(server.url) as raw:
        raw.done("$JS.API.STREAM.DELETE.A")
        raw.done("$JS.API.STREAM.CREATE.A", {"name": "A", "max_msgs": 6})
    plan = space.plan()
    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS302"]
    plan, result = space.write(streams=[]).apply()

    assert not plan.has_changes
    assert result.exit_code == 0
    assert owned(space) == set()
    with Raw(server.url) as raw:
        assert streams(raw) == ["A"]


def test_a_create_that_never_arrived_is_no_longer_pending(tmp_path: Path, server: Server) -> None:
    """Nothing was left behind, and the stream left the files: state forgets about it without a word."""
    space = single_space(tmp_path, server).write(streams=[{"name": "A"}])
    die_after_the_call(space)
    with Raw(server.url) as raw:
        raw.done("$JS.API.STREAM.DELETE.A")
    plan, result = space.write(streams=[]).apply()

    assert not plan.has_changes
    assert result.exit_code == 0
    assert owned(space) == set()


def die_after_the_call(space: Space) -> None:
    """Session, history, server and begin are written; the end of the first step is not."""
    with pytest.MonkeyPatch.context() as patch:
        Mortal(patch, 4)
        with pytest.raises(Died):
            space.apply(parallelism=1)
    state = read_state(space.folder)
    assert list(state.pending) == ["main/stream/A"]
    assert state.resources == {}


@pytest.mark.parametrize("seed", [1, 2])
def test_kill_9(seed: int, tmp_path: Path, server: Server) -> None:
    """A process that is really killed, somewhere in the middle: plan, drift and apply go on, and nothing is left unowned."""
    bodies = [{"name": f"S{n:02}", "subjects": [f"s{n}"], "consumers": [{"name": "C"}]} for n in range(40)]
    space = single_space(tmp_path, server).write(streams=bodies)
    process = begin(tmp_path, "apply", "-y", "--parallelism", "4")
    assert process.stderr is not None
    for _ in range(random.Random(seed).randrange(10, 60)):
        process.stderr.readline()
    process.kill()
    process.communicate(timeout=30)

    assert jsplan(tmp_path, "drift").code == 0
    assert jsplan(tmp_path, "apply", "-y").code == 0
    assert owned(space) == declared(*bodies)
    assert jsplan(tmp_path, "plan", "--detailed-exitcode").code == 0
