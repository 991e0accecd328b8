"""A reset of a consumer that is killed happens once, and never twice."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.applying.consumer_helpers import consumer_names, fill, pull, wait_until_resumed
from tests.applying.kill_boundaries import BoundaryKiller, expect_kill
from tests.support.raw import Raw, delete_all_streams
from tests.support.state import read_state
from tests.support.workspaces import Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.sandbox import Server

ALLOW = ("DUPLICATES_MESSAGES", "LOSES_CONSUMER_POSITION")
CONSUMER = "main/consumer/A/C"
#: The position by kind, and the sequences that come then, of 30 of which nine are acknowledged.
KINDS = {"back": (4, list(range(4, 31))), "forward": (21, list(range(21, 31)))}


def errors_of(result: ApplyResult) -> list[str]:
    """Return the errors of the steps."""
    return [f"{step.id}: {step.error}" for step in result.steps if step.error]


def write(space: Space, seq: int | None, word: str = "one") -> None:
    """Write one stream with one consumer, and where it is set."""
    position = {"position": {"seq": seq, "once": word}} if seq is not None else {}
    consumer = {"name": "C", "ack_policy": "explicit"} | position
    space.write(streams=[{"name": "A", "subjects": ["a.>"], "consumers": [consumer]}])


def prepare(space: Space, raw: Raw, kind: str) -> None:
    """Prepare 30 messages, nine of them acknowledged, and files that set the consumer."""
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    write(space, None)
    space.apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, None)
    write(space, KINDS[kind][0])


def count_boundaries(space: Space, raw: Raw, kind: str) -> int:
    """Count the boundaries at which the reset can be killed."""
    prepare(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        killer = BoundaryKiller(patch, 1000)
        space.apply(allow_hazards=ALLOW)
        return 1000 - killer.remaining


def require_settled(space: Space, raw: Raw, sequences: list[int]) -> None:
    """Require nothing left to do, and the consumer at the first of these sequences."""
    assert [step.title for step in space.plan().steps] == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})
    assert consumer_names(raw, "A") == ["C"]
    # A kill may leave the last tenth of a second of its pause.
    wait_until_resumed(raw, "A", "C")
    assert pull(raw, "A", "C", 100, None) == sequences
    assert [step.title for step in space.plan().steps] == []


def check_boundary(space: Space, raw: Raw, kind: str, boundary: int, total: int) -> None:
    """Kill at this boundary and apply again, with the same word."""
    prepare(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        BoundaryKiller(patch, boundary)
        with expect_kill(boundary, total):
            space.apply(allow_hazards=ALLOW)
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (kind, boundary, errors_of(result))
    require_settled(space, raw, KINDS[kind][1])


def check_changed_files(space: Space, raw: Raw, boundary: int, total: int) -> None:
    """Kill at this boundary, then take the position out of the files, then write another one."""
    prepare(space, raw, "back")
    with pytest.MonkeyPatch.context() as patch:
        BoundaryKiller(patch, boundary)
        with expect_kill(boundary, total):
            space.apply(allow_hazards=ALLOW)
    write(space, None)
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (boundary, errors_of(result))
    assert [step.title for step in space.plan().steps] == []
    write(space, 21, "two")
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (boundary, errors_of(result))
    require_settled(space, raw, list(range(21, 31)))


def check_busy_boundary(space: Space, raw: Raw, boundary: int, total: int) -> None:
    """Kill at this boundary, let a client process ten messages, and apply again.

    What it gets after the reset never comes again.
    """
    prepare(space, raw, "back")
    with pytest.MonkeyPatch.context() as patch:
        BoundaryKiller(patch, boundary)
        with expect_kill(boundary, total):
            space.apply(allow_hazards=ALLOW)
    between = pull(raw, "A", "C", 10, None)
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (boundary, errors_of(result))
    wait_until_resumed(raw, "A", "C")
    after = pull(raw, "A", "C", 100, None)
    first = 14 if between == list(range(4, 14)) else 4
    assert between in ([], list(range(4, 14)), list(range(10, 20))), boundary
    assert after == list(range(first, 31)), (boundary, between)


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_a_client_at_work_gets_nothing_twice(tmp_path: Path, server: Server) -> None:
    """After a kill at a random boundary, a client processes messages before the next apply."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, "back")
        for boundary in random.Random("busy").sample(range(1, total), 3):
            check_busy_boundary(space, raw, boundary, total)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.soak
def test_a_client_at_work_gets_nothing_twice_anywhere(tmp_path: Path, server: Server) -> None:
    """After a kill at any boundary, a client processes messages before the next apply."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, "back")
        for boundary in range(1, total):
            check_busy_boundary(space, raw, boundary, total)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_reset_happens_once(kind: str, tmp_path: Path, server: Server) -> None:
    """After a kill at a random boundary, the next apply ends with the consumer at its position."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        assert total > 8
        for boundary in random.Random(kind).sample(range(1, total), 4):
            check_boundary(space, raw, kind, boundary, total)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_a_reset_killed_anywhere_happens_once(kind: str, tmp_path: Path, server: Server) -> None:
    """After a kill at any boundary, the next apply ends with the consumer at its position."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        for boundary in range(1, total):
            check_boundary(space, raw, kind, boundary, total)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.soak
def test_files_that_change_after_a_kill_are_obeyed(tmp_path: Path, server: Server) -> None:
    """Without the word nothing is left behind, and another word sets the consumer again."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, "back")
        for boundary in range(1, total):
            check_changed_files(space, raw, boundary, total)
