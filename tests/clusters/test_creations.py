"""Creations that are sent together to a cluster, where replicas follow the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.clusters.scene import connect, make_space, start_cluster
from tests.support.state import read_state

if TYPE_CHECKING:
    from pathlib import Path

CONSUMER: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}


@pytest.mark.matrix
def test_a_cluster_keeps_what_is_created_together(tmp_path: Path) -> None:
    """Each replicated stream and consumer is read back, recorded, and planned no more."""
    with start_cluster() as cluster:
        space = make_space(tmp_path, cluster).write(
            streams=[
                {"name": f"S{n}", "subjects": [f"s{n}"], "num_replicas": 3, "consumers": [CONSUMER]}
                for n in range(8)
            ]
        )
        _, result = space.apply(parallelism=8)
        assert (result.exit_code, result.summary["added"]) == (0, 16)
        state = read_state(space.folder)
        with connect(cluster, timeout=30) as raw:
            for address, entry in state.resources.items():
                consumer = address.kind == "consumer"
                name = f"{address.stream}.{address.consumer}" if consumer else address.stream
                kind = "CONSUMER" if consumer else "STREAM"
                assert raw.api_ok(f"$JS.API.{kind}.INFO.{name}")["created"] == entry.created
        assert (len(state.resources), state.pending) == (16, {})
        assert not space.plan().has_changes
