"""Consumers that an archive lacks come back at the positions in the manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backup.run import BackupOptions
from jsplan.sandbox import Sandbox, versions
from jsplan.workflows.backup import backup
from jsplan.workflows.restore import RestoreOptions, restore
from tests.clusters.scene import PASSWORD, SITE, connect, make_space
from tests.support import stream_content
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server


def write_positions(space: Space, **consumer: Any) -> Space:
    """Write a stream of six consumers."""
    consumers = [{"name": f"C{n}", "ack_policy": "explicit"} | consumer for n in range(6)]
    body = {"name": "S", "subjects": ["S.*"], "consumers": consumers}
    return space.write(streams=[body | ({"num_replicas": 3} if "num_replicas" in consumer else {})])


def require_positions_restored(space: Space, raw: Raw) -> None:
    """Acknowledge messages, back up, delete, restore: each consumer continues where it was."""
    assert space.apply()[1].exit_code == 0
    stream_content.fill(raw, "S", 40)
    for n in range(6):
        acks = stream_content.pull_acks(raw, "S", f"C{n}", 5 * (n + 1))
        stream_content.acknowledge(raw, acks)
    folder = space.folder / "out"
    backup(space.load, BackupOptions(("main/**",), folder), RecordingObserver())
    raw.api_ok("$JS.API.STREAM.DELETE.S")
    result = restore(space.load, RestoreOptions(folder), approve, RecordingObserver())[1]
    assert [step.error for step in result.steps if step.error] == []
    infos = [raw.api_ok(f"$JS.API.CONSUMER.INFO.S.C{n}") for n in range(6)]
    assert [info["num_pending"] for info in infos] == [35, 30, 25, 20, 15, 10]
    assert space.plan().steps == []


@pytest.mark.matrix
def test_consumers_in_memory_come_back_at_their_positions(tmp_path: Path, server: Server) -> None:
    """A consumer that no archive before 2.15 has is created at the position in the manifest."""
    space = write_positions(single_space(tmp_path, server), mem_storage=True)
    with Raw(server.url) as raw:
        require_positions_restored(space, raw)


@pytest.mark.download
@pytest.mark.parametrize("version", ["2.10.26", "2.14.6"])
def test_consumers_with_fewer_replicas_come_back_at_their_positions(
    version: str, tmp_path: Path
) -> None:
    """A cluster before 2.15 saves only the consumers of one server; all of them come back."""
    with Sandbox.of_sites([SITE], PASSWORD, binary=versions.ensure_version(version)) as cluster:
        space = write_positions(make_space(tmp_path, cluster), num_replicas=1)
        with connect(cluster, timeout=30) as raw:
            require_positions_restored(space, raw)
