"""A replica that lost a part of a stream is named while the stream is still whole elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.clusters.scene import PASSWORD, make_space, publish_acknowledged, start_cluster
from tests.support.raw import Raw
from tests.support.waiting import wait_until
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.drift import Drift
    from jsplan.sandbox import Sandbox, Server
    from tests.support.workspaces import Space

pytestmark = [pytest.mark.soak, pytest.mark.matrix]

#: Messages of 4 KB: more than one block.
MESSAGES = 3_000


def check(space: Space) -> Drift:
    """Run drift."""
    return drift(space.load, DriftOptions(replication=False), RecordingObserver())


def find_follower(cluster: Sandbox, server: Server) -> Server:
    """Return a server that does not lead the stream."""
    with Raw(server.url, "A", PASSWORD) as raw:
        leader = raw.api_ok("$JS.API.STREAM.INFO.S")["cluster"]["leader"]
    return next(each for each in cluster.servers.values() if f"{each.node.name}-server" != leader)


@pytest.mark.parametrize("how", ["removed", "a flipped bit"])
def test_a_damaged_replica(how: str, tmp_path: Path) -> None:
    """Drift and status name the server and both counts, and how it copies the stream again."""
    with start_cluster() as cluster:
        space = make_space(tmp_path, cluster)
        system = {"url": cluster["c-1"].url, "user": "SYS", "password": PASSWORD}
        main = {"connection": "main", "js_domain": None, "system": "system"}
        stream: dict[str, Any] = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
        connections = space.base["connections"] | {"system": system}
        kept = {"connections": connections, "domains": {"main": main}}
        space.write(**kept, streams=[stream]).apply()
        publish_acknowledged(cluster["c-1"], MESSAGES, 4_000)
        assert check(space).exit_code == 0

        server = find_follower(cluster, cluster["c-1"])
        # Damage the first block of the stream on the disk of a server, and start that again.
        server.kill()
        blocks = server.store_path.rglob("streams/S/msgs/*.blk")
        first = min(blocks, key=lambda path: int(path.stem))
        if how == "removed":
            first.unlink()
        else:
            data = bytearray(first.read_bytes())
            data[5_000] ^= 0xFF
            first.write_bytes(data)
        for index in server.store_path.rglob("streams/S/msgs/index.db"):
            index.unlink()
        server.start()
        cluster.wait_ready()

        found = check(space)
        (breach,) = found.thresholds
        assert found.exit_code == 2
        assert (breach["key"], breach["address"]) == ("jsplan.lost-replicas", "main/stream/S")
        name = f"{server.node.name}-server"
        assert f": {MESSAGES:,} messages, sequences 1 to {MESSAGES:,}" in breach["cause"]
        assert f"If {name} becomes the leader, messages are lost" in breach["cause"]
        seen = status(space.load, RecordingObserver()).streams[0]["thresholds"]
        assert [each["key"] for each in seen] == ["jsplan.lost-replicas"]

        for count in (1, 3):  # as the finding says
            streams = [stream | {"num_replicas": count}]
            result = space.write(**kept, streams=streams).apply()[1]
            assert result.exit_code == 0
        wait_until(lambda: not check(space).thresholds, "equal replicas")


def test_a_connection_that_is_not_of_the_system(tmp_path: Path) -> None:
    """A warning says that nothing was compared, and the rest of the check is done."""
    with start_cluster() as cluster:
        space = make_space(tmp_path, cluster)
        main = {"connection": "main", "js_domain": None, "system": "main"}
        stream = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
        space.write(domains={"main": main}, streams=[stream]).apply()

        found = check(space)

        assert [each.code for each in found.diagnostics] == ["JS485"]
        assert found.exit_code == 0
