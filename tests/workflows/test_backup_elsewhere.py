"""A restore on other servers, and of consumers that the archive lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backup.run import BackupOptions
from jsplan.errors import PlanError
from jsplan.sandbox import Sandbox, versions
from jsplan.sandbox.sites import Account, Site
from jsplan.workflows.backup import backup
from jsplan.workflows.restore import RestoreOptions, restore
from tests.clusters.scene import PASSWORD, SITE, connect, make_space, start_cluster
from tests.conftest import PROGRAM
from tests.support import stream_content
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver, Space, approve, left_to_do, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server


DELETING = ("DELETES_STREAM", "DELETES_CONSUMER", "REMOVES_SUBJECTS")


def write_positions(space: Space, **consumer: Any) -> Space:
    """Write a stream of six consumers."""
    consumers = [{"name": f"C{n}", "ack_policy": "explicit"} | consumer for n in range(6)]
    body = {"name": "S", "subjects": ["S.*"], "consumers": consumers}
    return space.write(streams=[body | ({"num_replicas": 3} if "num_replicas" in consumer else {})])


def require_positions_restored(space: Space, raw: Raw, *, by_apply: bool = False) -> None:
    """Acknowledge messages, back up, delete, restore: each consumer continues where it was.

    `by_apply`: an apply saves the stream before it deletes it.
    """
    assert space.apply()[1].exit_code == 0
    stream_content.fill(raw, "S", 40)
    for n in range(6):
        acks = raw.pull("S", f"C{n}", 5 * (n + 1))
        raw.ack(acks)
    folder = space.folder / "out"
    if by_apply:
        _, deleted = space.apply(destroy=True, allow_hazards=DELETING, backup=folder)
        assert deleted.exit_code == 0
    else:
        backup(space.load, BackupOptions(("main/**",), folder), RecordingObserver())
        raw.api_ok("$JS.API.STREAM.DELETE.S")
    folder = next(folder.rglob("manifest.json")).parent
    result = restore(space.load, RestoreOptions(folder), approve, RecordingObserver())[1]
    assert [step.error for step in result.steps if step.error] == []
    infos = [raw.api_ok(f"$JS.API.CONSUMER.INFO.S.C{n}") for n in range(6)]
    assert [info["num_pending"] for info in infos] == [35, 30, 25, 20, 15, 10]
    assert left_to_do(space.plan()) == []


@pytest.mark.matrix
@pytest.mark.parametrize("by_apply", [False, True], ids=["backup", "apply --backup"])
def test_consumers_in_memory_come_back_at_their_positions(
    by_apply: bool, tmp_path: Path, server: Server
) -> None:
    """A consumer that no archive before 2.15 has is created at the position in the manifest."""
    space = write_positions(single_space(tmp_path, server), mem_storage=True)
    with Raw(server.url) as raw:
        require_positions_restored(space, raw, by_apply=by_apply)


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


ONE = Site("one", (Account("A", {"max_streams": 1, "max_consumers": 1, "max_file": 10_000}),))


def test_a_restore_on_fewer_servers(tmp_path: Path) -> None:
    """Replicas and limits that the servers lack are refused; --replicas restores with others."""
    # A backup of three streams with three replicas, one of them with such a consumer.
    folder = tmp_path / "cluster"
    folder.mkdir()
    with start_cluster() as cluster:
        space = make_space(folder, cluster)
        own: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}
        streams: list[dict[str, Any]] = [
            {"name": "A", "subjects": ["A.*"], "consumers": [own]},
            {"name": "B", "consumers": [own | {"num_replicas": 3}]},
            {"name": "BIG", "max_bytes": 20_000},
        ]
        space.write(streams=[stream | {"num_replicas": 3} for stream in streams]).apply()
        with connect(cluster) as raw:
            stream_content.fill(raw, "A", 20)
        everything = BackupOptions(("main/**",), folder / "out")
        saved = backup(space.load, everything, RecordingObserver())
        assert saved.exit_code == 0, saved.manifest.missing
    with Sandbox.of_sites([ONE], PASSWORD, binary=PROGRAM) as sandbox:
        space = make_space(tmp_path, sandbox, "one").write()

        def find_errors(target: str, replicas: int | None = None) -> list[tuple[str, str]]:
            options = RestoreOptions(folder / "out", targets=(target,), replicas=replicas)
            with pytest.raises(PlanError) as caught:
                restore(space.load, options, approve, RecordingObserver())
            return [(found.code, found.address or "") for found in caught.value.diagnostics]

        assert find_errors("main/stream/A") == [("JS430", "main/stream/A")]
        assert find_errors("main/stream/B", replicas=1) == [("JS430", "main/consumer/B/C")]
        assert [code for code, _ in find_errors("main/stream/BIG", replicas=1)] == ["JS441"]
        options = RestoreOptions(folder / "out", targets=("main/stream/A",), replicas=1)
        result = restore(space.load, options, approve, RecordingObserver())[1]
        assert result.exit_code == 0
        with Raw(sandbox["one"].url, "A", PASSWORD) as raw:
            found = raw.api_ok("$JS.API.STREAM.INFO.A")
        assert (found["config"]["num_replicas"], found["state"]["messages"]) == (1, 20)
