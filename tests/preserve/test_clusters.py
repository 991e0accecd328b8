"""Preserving replacements in a cluster, where a new stream has no leader at first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.preserve.test_streams import PRESERVE, replace_stream
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.matrix

BASE: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "num_replicas": 3,
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}


def test_a_stream_with_three_replicas(tmp_path: Path) -> None:
    """A stream with three replicas keeps its messages, and its consumer resumes by its floor."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        cluster.start()
        node = next(iter(cluster.servers.values()))
        connection = {"url": node.url, "user": node.user, "password": node.password}
        domains = {"main": {"connection": "main", "js_domain": None}}
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": {"main": connection},
            "domains": domains,
            "defaults": {"domain": "main"},
        }
        space = Space(tmp_path, base).write(streams=[BASE])
        space.apply()
        with Raw(node.url, node.user, node.password, timeout=30) as raw:
            stream_content.fill(raw, "A", 500)
            raw.ack(raw.pull("A", "C", 30)[:20])
            before = stream_content.messages(raw, "A")
            for change in ({"storage": "memory"}, {"storage": "file", "num_replicas": 1}):
                replace_stream(space, BASE | change | PRESERVE, tries=3)
                messages = stream_content.messages(raw, "A")
                assert messages == before
                # A new leader of the consumer counts the pending messages a moment later.
                node.wait_until(
                    lambda: 470 <= stream_content.positions(raw, "A")["C"][3] <= 480,
                    "count 470 to 480 pending messages",
                )
            assert streams(raw) == ["A"]
