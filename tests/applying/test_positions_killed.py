"""A consumer that is made anew by a process that dies: wherever it dies, its place, the messages and nothing else is left in the end."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from tests.applying.consumer_helpers import consumer_info, consumer_names, fill, pull
from tests.applying.kill_boundaries import BoundaryKiller, expect_kill
from tests.support.raw import Raw, delete_all_streams
from tests.support.state import read_state
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

#: What each has on its way: placeholder and reset; placeholder and start; neither, in a work queue.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "interest": ({"retention": "interest"}, {}),
    "new": ({"retention": "interest"}, {"deliver_policy": "new"}),
    "limits": ({}, {}),
    "workqueue": ({"retention": "workqueue"}, {}),
}


def write(space: Space, kind: str, **consumer: Any) -> None:
    """One stream with one consumer."""
    stream, first = KINDS[kind]
    body = {"name": "A", "subjects": ["a.>"]} | stream
    space.write(
        streams=[body | {"consumers": [{"name": "C", "ack_policy": "explicit"} | first | consumer]}]
    )


def reset_stream(space: Space, raw: Raw, kind: str) -> None:
    """Thirty messages, of which nine are acknowledged, on a clean server; the files want a new consumer."""
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    write(space, kind)
    space.apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, None)
    write(space, kind, max_waiting=7)


def count_boundaries(space: Space, raw: Raw, kind: str) -> int:
    """How often a process could die in it."""
    reset_stream(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        mortal = BoundaryKiller(patch, 1000)
        space.apply()
        return 1000 - mortal.remaining


def kill_at(space: Space, raw: Raw, kind: str, boundary: int, total: int) -> None:
    """An apply that dies there; before that everything is as it was."""
    reset_stream(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        BoundaryKiller(patch, boundary)
        with expect_kill(boundary, total):
            space.apply()


def require_position_kept(space: Space, raw: Raw, waiting: int) -> None:
    """The consumer goes on at the tenth message and is as the files say; nothing else is there, nothing is left to do."""
    info = consumer_info(raw, "A", "C")
    assert info["config"]["max_waiting"] == waiting
    assert "pause_until" not in info["config"]
    assert consumer_names(raw, "A") == ["C"]
    assert [step.title for step in space.plan().steps] == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})
    assert {str(address) for address in state.resources} == {"main/stream/A", "main/consumer/A/C"}
    assert pull(raw, "A", "C", 100) == list(range(10, 31))


def check_boundaries(space: Space, raw: Raw, kind: str, chosen: list[int], total: int) -> None:
    """Each boundary twice: the files still want the new consumer, and they want the old one again."""
    for boundary in chosen:
        for waiting in (7, 512):
            kill_at(space, raw, kind, boundary, total)
            write(space, kind, **({"max_waiting": 7} if waiting == 7 else {}))
            _, result = space.apply()
            assert result.exit_code == 0, (kind, boundary, waiting, result)
            require_position_kept(space, raw, waiting)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_death_somewhere(kind: str, tmp_path: Path, server: Server) -> None:
    """At a few boundaries, whether the files stay or are taken back: no place is lost, no message, nothing is left behind."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        assert total > 8
        check_boundaries(space, raw, kind, random.Random(kind).sample(range(1, total), 3), total)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_death_everywhere(kind: str, tmp_path: Path, server: Server) -> None:
    """The same at every boundary."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        check_boundaries(space, raw, kind, list(range(1, total)), total)


def test_what_stood_in_goes_when_the_consumer_left_the_files(
    tmp_path: Path, server: Server
) -> None:
    """Between the delete and the create the consumer left the files: the next apply forgets it and removes the placeholder."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, "interest")
        for boundary in range(1, total):
            kill_at(space, raw, "interest", boundary, total)
            if consumer_names(raw, "A") and "C" not in consumer_names(raw, "A"):
                break
        space.write(streams=[{"name": "A", "subjects": ["a.>"], "retention": "interest"}])
        _, result = space.apply(allow_hazards=("DELETES_MESSAGES",))

        assert result.exit_code == 0
        assert consumer_names(raw, "A") == []
        assert [step.title for step in space.plan().steps] == []
