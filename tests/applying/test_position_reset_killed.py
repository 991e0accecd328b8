"""A reset of a consumer that is killed happens once, and never twice."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from tests.applying.consumer_helpers import fill, pull, stream_sequence, wait_until_resumed
from tests.support.raw import Raw, delete_all_streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import Space, left_to_do, single_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.sandbox import Server

ALLOW = ("DUPLICATES_MESSAGES", "LOSES_CONSUMER_POSITION")
CONSUMER = "main/consumer/A/C"


def errors_of(result: ApplyResult) -> list[str]:
    """Return the errors of the steps."""
    return [f"{step.id}: {step.error}" for step in result.steps if step.error]


def write(space: Space, seq: int | None, word: str = "one") -> None:
    """Write one stream with one consumer, and where it is set."""
    position = {"position": {"seq": seq, "once": word}} if seq is not None else {}
    consumer = {"name": "C", "ack_policy": "explicit"} | position
    space.write(streams=[{"name": "A", "subjects": ["a.>"], "consumers": [consumer]}])


def kill_at(space: Space, raw: Raw, boundary: int) -> bool:
    """Prepare the consumer again and kill an apply at the boundary; False if it ended before."""
    # Prepare 30 messages, nine of them acknowledged, and files that set the consumer.
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    write(space, None)
    space.apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, None)
    write(space, 4)
    with kill_after(boundary) as counter, suppress(SimulatedKill):
        space.apply(allow_hazards=ALLOW)
    return counter.died


def check_changed_files(space: Space, raw: Raw, boundary: int) -> None:
    """Take the position out of the files after the kill, then write another one."""
    write(space, None)
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (boundary, errors_of(result))
    assert left_to_do(space.plan()) == []
    write(space, 21, "two")
    _, result = space.apply(allow_hazards=ALLOW)
    assert result.exit_code == 0, (boundary, errors_of(result))
    assert left_to_do(space.plan()) == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})
    assert raw.consumer_names("A") == ["C"]
    # A kill may leave the last tenth of a second of its pause.
    wait_until_resumed(raw, "A", "C")
    assert pull(raw, "A", "C", 100, None) == list(range(21, 31))
    assert left_to_do(space.plan()) == []


def check_busy_boundary(space: Space, raw: Raw, boundary: int) -> None:
    """Let a client process ten messages after the kill, and apply again.

    What it gets after the reset never comes again.
    """
    replies = raw.pull("A", "C", 10, wait=False)  # none while the consumer is paused
    raw.ack(replies)
    between = [stream_sequence(reply) for reply in replies]
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
    """After a kill at some boundaries, a client processes messages before the next apply."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        for boundary in (2, 5, 8):
            assert kill_at(space, raw, boundary)
            check_busy_boundary(space, raw, boundary)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.parametrize("check", [check_busy_boundary, check_changed_files])
def test_a_client_or_the_files_after_any_kill(
    check: Callable[[Space, Raw, int], None], tmp_path: Path, server: Server
) -> None:
    """Without the word nothing is left behind, and another word sets the consumer again."""
    space, boundary = single_space(tmp_path, server), 1
    with Raw(server.url) as raw:
        while kill_at(space, raw, boundary):
            check(space, raw, boundary)
            boundary += 1
    assert boundary > 8
