"""A majority of servers with older stores loses acknowledged messages, and drift names them."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import ConnectError
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.clusters.scene import make_space, publish_acknowledged, start_cluster
from tests.support.older_store import keep_store, put_store_back
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.workspaces import Space

pytestmark = [pytest.mark.soak, pytest.mark.matrix]


def losses(space: Space) -> list[str]:
    """Return what drift says of the stream."""
    found = drift(space.load, DriftOptions(replication=False), RecordingObserver())
    return [breach["cause"] for breach in found.thresholds if "lost" in breach["key"]]


def test_replicas_with_an_older_store_that_win(tmp_path: Path) -> None:
    """Two of three servers come back with a backup of their disks, while the third is down."""
    with start_cluster() as cluster:
        first, *older = (cluster[f"c-{number}"] for number in (1, 2, 3))
        space = make_space(tmp_path, cluster, "c-2")
        stream = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
        space.write(streams=[stream], drift={"watermarks": "marks.json"}).apply()
        publish_acknowledged(older[0], 40)
        for server in older:
            keep_store(server)
            cluster.wait_ready()
        publish_acknowledged(older[0], 25)
        assert losses(space) == []

        first.kill()
        for server in older:
            server.kill()
        for server in older:
            put_store_back(server)

        found = wait_for_losses(space)
        assert len(found) == 1
        assert "lost 25 messages: it ended at sequence 65" in found[0]
        assert "and ends at 40 now" in found[0]
        assert losses(space) == found


def wait_for_losses(space: Space) -> list[str]:
    """Return what drift says once the two servers have a leader."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        with contextlib.suppress(ConnectError):
            if found := losses(space):
                return found
        time.sleep(0.5)
    raise AssertionError("drift names no loss")
