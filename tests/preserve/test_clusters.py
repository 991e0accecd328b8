"""In a cluster what was just made has no leader for a moment, and archives keep less of a consumer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.preserve.test_streams import PRESERVE, level, replaced
from tests.support import stored
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.matrix

BASE: dict[str, Any] = {"name": "A", "subjects": ["A.>"], "num_replicas": 3, "consumers": [{"name": "C", "ack_policy": "explicit"}]}


def test_a_stream_with_three_copies(tmp_path: Path, server_version: tuple[int, ...]) -> None:
    """It is made anew with three copies, then with one; messages are as before, and its consumer goes on at its floor at the latest."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        cluster.start()
        node = next(iter(cluster.servers.values()))
        connection = {"url": node.url, "user": node.user, "password": node.password}
        domains = {"main": {"connection": "main", "js_domain": None}}
        base = {"jsplan": 1, "workspace": "test", "connections": {"main": connection}, "domains": domains, "defaults": {"domain": "main"}}
        space = Space(tmp_path, base).write(streams=[BASE])
        space.apply()
        with Raw(node.url, node.user, node.password, timeout=30) as raw:
            stored.fill(raw, "A", 500)
            stored.acknowledge(raw, stored.take(raw, "A", "C", 30)[:20])
            held = stored.messages(raw, "A")
            for after in ({"storage": "memory"}, {"storage": "file", "num_replicas": 1}):
                replaced(space, BASE | after | PRESERVE)
                kept = stored.messages(raw, "A")
                assert stored.without_place(kept) == stored.without_place(held)
                assert kept == held or level(server_version) < 2
                # A replica of the consumer that has just become its leader has not counted yet what is pending.
                node.wait_until(lambda: 470 <= stored.positions(raw, "A")["C"][3] <= 480, "count 470 to 480 pending messages")
            assert streams(raw) == ["A"]
