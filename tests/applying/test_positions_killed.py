"""A replacement of a consumer that is killed is named in every report."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.context import open_context
from jsplan.options import DriftOptions
from jsplan.state import LockInfo
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.applying.consumer_helpers import (
    fill,
    pull,
)
from tests.support.raw import Raw, delete_all_streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, left_to_do, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.drift import Drift
    from jsplan.sandbox import Server


def write(space: Space, kind: str, **consumer: Any) -> None:
    """Write one stream with this retention and one consumer."""
    body = {"name": "A", "subjects": ["a.>"], "retention": kind}
    space.write(
        streams=[body | {"consumers": [{"name": "C", "ack_policy": "explicit"} | consumer]}]
    )


def kill_at_each_boundary(space: Space, raw: Raw, kind: str) -> Iterator[int]:
    """Prepare the stream again and kill an apply, once for each boundary, and yield that."""
    for boundary in itertools.count(1):
        # Prepare 30 messages, nine of them acknowledged, and files that replace the consumer.
        delete_all_streams(raw)
        shutil.rmtree(space.folder / "state", ignore_errors=True)
        write(space, kind)
        space.apply()
        fill(raw, 30)
        pull(raw, "A", "C", 9, None)
        write(space, kind, max_waiting=7)
        with kill_after(boundary) as counter, suppress(SimulatedKill):
            space.apply()
        if not counter.died:
            return
        yield boundary


#: Of the pause that holds a consumer; the one that wakes its clients is short.
HOLDING_YEAR = "2249-"


@pytest.mark.parametrize("kind", ["limits", "interest"])
def test_an_interrupted_replacement_is_named(kind: str, tmp_path: Path, server: Server) -> None:
    """Drift, status and plan name it, but not while another process holds the lock."""
    space, checked = single_space(tmp_path, server), 0
    with Raw(server.url) as raw:
        for _ in kill_at_each_boundary(space, raw, kind):
            if not read_state(space.folder).replacements.get("main/consumer/A/C"):
                continue
            during = asyncio.run(drift_under_lock(space))
            after = drift(space.load, DriftOptions(replication=False), RecordingObserver())

            assert (during.interrupted, during.thresholds) == ([], [])
            assert (len(after.interrupted), after.exit_code) == (1, 2)
            assert [item["address"] for item in after.interrupted] == ["main/consumer/A/C"]
            assert status(space.load, RecordingObserver()).interrupted == after.interrupted
            summary = after.interrupted[0]["summary"]
            notes = [d for d in space.plan().diagnostics if d.address == "main/consumer/A/C"]
            assert ("JS424", summary) in [(d.code, d.summary) for d in notes]
            assert "JS428" not in [d.code for d in notes]
            if "C" not in raw.consumer_names("A"):
                assert summary.startswith("A/C does not exist: its clients get nothing, because")
            elif str(raw.consumer_info("A", "C")["config"].get("pause_until", "")).startswith(
                HOLDING_YEAR
            ):
                assert summary.startswith("A/C is paused: its clients get nothing, because")
            else:
                assert summary.startswith("the replacement of A/C was interrupted")
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
        for _ in kill_at_each_boundary(space, raw, "interest"):
            if raw.consumer_names("A") and "C" not in raw.consumer_names("A"):
                break
        space.write(streams=[{"name": "A", "subjects": ["a.>"], "retention": "interest"}])
        # The request that was sent before the death may create the consumer after this look.
        _, result = space.apply(allow_hazards=("DELETES_MESSAGES", "DELETES_CONSUMER"))

        assert result.exit_code == 0
        assert raw.consumer_names("A") == []
        assert left_to_do(space.plan()) == []
