"""`status` of a cluster that has lost its majority, and with it the state."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from jsplan.workflows.status import status
from tests.clusters.scene import NO_LEADER, connect, make_space, start_cluster
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

LOST = {"c-2-server", "c-3-server"}


def wait_until_leaderless(cluster: Sandbox, stream: str) -> None:
    """Wait until the server that is left misses the leader, and the replicas of a stream."""
    for _ in range(300):
        with contextlib.suppress(OSError), connect(cluster) as raw:
            error = raw.api("$JS.API.INFO").get("error", {})
            known = raw.api(f"$JS.API.STREAM.INFO.{stream}").get("cluster", {})
            missed = {p["name"] for p in known.get("replicas", ()) if not p.get("current")}
            if error.get("err_code") == NO_LEADER and missed >= LOST:
                return
        time.sleep(0.2)
    raise AssertionError("the cluster still has a leader")


@pytest.mark.matrix
def test_status_without_quorum_and_state(tmp_path: Path, server: Server) -> None:
    """It shows the domain that answers, and says what of the other and of the state is unknown."""
    with start_cluster() as cluster:
        space = make_space(tmp_path, cluster)
        space.base["connections"]["edge"] = {"url": server.url}
        space.base["domains"]["edge"] = {"connection": "edge", "js_domain": None}
        space.base["backend"] = {"kv": {"domain": "main", "bucket": "STATE"}}
        replicated = {"name": "R", "subjects": ["r"], "num_replicas": 3}
        space.write(streams=[replicated, {"name": "E", "subjects": ["e"], "domain": "edge"}])
        assert space.apply()[1].exit_code == 0
        for name in ("c-2", "c-3"):
            cluster[name].kill()
        wait_until_leaderless(cluster, "R")
        found = status(space.load, RecordingObserver())

    reasons = {domain["domain"]: domain["reason"] for domain in found.domains}
    assert reasons["edge"] is None
    assert reasons["main"] == (
        "its cluster has no leader (10008); no answer from c-2-server, c-3-server"
    )
    assert [(item["address"], item["managed"]) for item in found.streams] == [
        ("edge/stream/E", None)
    ]
    (note,) = [d.summary for d in found.diagnostics if d.code == "JS477"]
    assert note.startswith("cannot read the state test in bucket STATE of domain main")
