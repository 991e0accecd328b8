"""A stream of a cluster gets another name with three replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.relocate.scene import PERMITTED
from tests.support import stream_content
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

BODY: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "num_replicas": 3,
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}


def test_a_stream_with_three_replicas(tmp_path: Path) -> None:
    """It keeps its messages, and its consumer resumes by its floor."""
    with Sandbox.cluster(binary=PROGRAM) as cluster:
        cluster.start()
        node = next(iter(cluster.servers.values()))
        connection = {"url": node.url, "user": node.user, "password": node.password}
        base = {
            "jsplan": 1,
            "workspace": "test",
            "connections": {"main": connection},
            "domains": {"main": {"connection": "main", "js_domain": None}},
            "defaults": {"domain": "main"},
        }
        space = Space(tmp_path, base).write(streams=[BODY])
        space.apply()
        with Raw(node.url, node.user, node.password, timeout=30) as raw:
            stream_content.fill(raw, "A", 300)
            raw.delete("A", 100, 300)
            raw.ack(raw.pull("A", "C", 30)[:20])
            before = stream_content.messages(raw, "A")
            space.write(
                streams=[BODY | {"name": "B"}],
                relocate=[{"from": "main/stream/A", "to": "main/stream/B"}],
            )

            _, result = space.apply(allow_hazards=PERMITTED)

            assert [s.error for s in result.steps if s.error] == []
            assert streams(raw) == ["B"]
            assert stream_content.messages(raw, "B") == before
            # A new leader of the consumer counts the pending messages a moment later.
            node.wait_until(
                lambda: 268 <= stream_content.positions(raw, "B")["C"][3] <= 278,
                "count the pending messages",
            )
        assert left_to_do(space.plan()) == []
