"""A replacement of a consumer that is killed keeps position and messages."""

from __future__ import annotations

import asyncio
import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.context import open_context
from jsplan.options import DriftOptions
from jsplan.state import LockInfo
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.applying.consumer_helpers import (
    consumer_info,
    consumer_names,
    fill,
    pull,
    wait_until_resumed,
)
from tests.applying.kill_boundaries import BoundaryKiller, expect_kill
from tests.support.raw import Raw, delete_all_streams
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.drift import Drift
    from jsplan.sandbox import Server

#: Mechanisms by kind: placeholder and reset; placeholder and start; in a work queue neither.
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "interest": ({"retention": "interest"}, {}),
    "new": ({"retention": "interest"}, {"deliver_policy": "new"}),
    "limits": ({}, {}),
    "workqueue": ({"retention": "workqueue"}, {}),
}


def write(space: Space, kind: str, **consumer: Any) -> None:
    """Write one stream with one consumer."""
    stream, first = KINDS[kind]
    body = {"name": "A", "subjects": ["a.>"]} | stream
    space.write(
        streams=[body | {"consumers": [{"name": "C", "ack_policy": "explicit"} | first | consumer]}]
    )


def reset_stream(space: Space, raw: Raw, kind: str) -> None:
    """Prepare 30 messages, nine of them acknowledged, and files that replace the consumer."""
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    write(space, kind)
    space.apply()
    fill(raw, 30)
    pull(raw, "A", "C", 9, None)
    write(space, kind, max_waiting=7)


def count_boundaries(space: Space, raw: Raw, kind: str) -> int:
    """Count the boundaries at which the replacement can be killed."""
    reset_stream(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        killer = BoundaryKiller(patch, 1000)
        space.apply()
        return 1000 - killer.remaining


def kill_at(space: Space, raw: Raw, kind: str, boundary: int, total: int) -> None:
    """Prepare the stream again and kill an apply at this boundary."""
    reset_stream(space, raw, kind)
    with pytest.MonkeyPatch.context() as patch:
        BoundaryKiller(patch, boundary)
        with expect_kill(boundary, total):
            space.apply()


def require_position_kept(space: Space, raw: Raw, waiting: int) -> None:
    """Require the consumer of the files at its tenth message, and nothing else."""
    wait_until_resumed(raw, "A", "C")
    info = consumer_info(raw, "A", "C")
    assert info["config"]["max_waiting"] == waiting
    assert consumer_names(raw, "A") == ["C"]
    assert [step.title for step in space.plan().steps] == []
    state = read_state(space.folder)
    assert (state.pending, state.replacements) == ({}, {})
    assert {str(address) for address in state.resources} == {"main/stream/A", "main/consumer/A/C"}
    assert pull(raw, "A", "C", 100) == list(range(10, 31))


#: Of the pause that holds a consumer; the one that wakes its clients is short.
HOLDING_YEAR = "2249-"


def require_named(space: Space, raw: Raw) -> None:
    """Require that drift, status and plan name the interrupted replacement in the same words."""
    if not read_state(space.folder).replacements.get("main/consumer/A/C"):
        return
    found = drift(space.load, DriftOptions(replication=False), RecordingObserver())
    assert found.exit_code == 2
    assert [item["address"] for item in found.interrupted] == ["main/consumer/A/C"]
    assert status(space.load, RecordingObserver()).interrupted == found.interrupted
    summary = found.interrupted[0]["summary"]
    notes = [d for d in space.plan().diagnostics if d.address == "main/consumer/A/C"]
    assert ("JS424", summary) in [(d.code, d.summary) for d in notes]
    assert "JS428" not in [d.code for d in notes]
    if "C" not in consumer_names(raw, "A"):
        assert summary.startswith("A/C does not exist: its clients get nothing, because")
    elif str(consumer_info(raw, "A", "C")["config"].get("pause_until", "")).startswith(
        HOLDING_YEAR
    ):
        assert summary.startswith("A/C is paused: its clients get nothing, because")
    else:
        assert summary.startswith("the replacement of A/C was interrupted")


def check_boundaries(space: Space, raw: Raw, kind: str, chosen: list[int], total: int) -> None:
    """Kill at each boundary, then apply the files with the new and with the old consumer."""
    for boundary in chosen:
        for waiting in (7, 512):
            kill_at(space, raw, kind, boundary, total)
            write(space, kind, **({"max_waiting": 7} if waiting == 7 else {}))
            require_named(space, raw)
            _, result = space.apply()
            assert result.exit_code == 0, (kind, boundary, waiting, result)
            require_position_kept(space, raw, waiting)


@pytest.mark.since_2_12
@pytest.mark.matrix
@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_random_boundaries(kind: str, tmp_path: Path, server: Server) -> None:
    """After a kill at a random boundary, the next apply keeps position and messages."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        assert total > 8
        check_boundaries(space, raw, kind, random.Random(kind).sample(range(1, total), 3), total)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_every_boundary(kind: str, tmp_path: Path, server: Server) -> None:
    """After a kill at any boundary, the next apply keeps position and messages."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total = count_boundaries(space, raw, kind)
        check_boundaries(space, raw, kind, list(range(1, total)), total)


def test_nothing_is_interrupted_while_an_apply_runs(tmp_path: Path, server: Server) -> None:
    """While another process holds the lock, a replacement that it works on is not interrupted."""
    space = single_space(tmp_path, server)
    with Raw(server.url) as raw:
        total, checked = count_boundaries(space, raw, "limits"), 0
        for boundary in range(1, total):
            kill_at(space, raw, "limits", boundary, total)
            if not read_state(space.folder).replacements:
                continue
            during = asyncio.run(drift_under_lock(space))
            after = drift(space.load, DriftOptions(replication=False), RecordingObserver())

            assert (during.interrupted, during.thresholds) == ([], [])
            assert (len(after.interrupted), after.exit_code) == (1, 2)
            checked += 1
    assert checked > 1


async def drift_under_lock(space: Space) -> Drift:
    """Check for drift while another apply holds the lock."""
    lock = LockInfo.for_this_process("apply")
    options = DriftOptions(replication=False)
    async with open_context(space.load) as context, context.backend.lock(lock, 0):
        return await asyncio.to_thread(drift, space.load, options, RecordingObserver())


def test_a_placeholder_goes_when_the_consumer_left_the_files(
    tmp_path: Path, server: Server
) -> None:
    """A placeholder consumer is removed after its consumer left the files in between."""
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
