"""Work queues and interest streams move by a snapshot, while their workers go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import Scene
from tests.relocate.systems import TwoSystems
from tests.support import stream_content

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeServer

RETENTIONS = pytest.mark.parametrize("retention", ["workqueue", "interest"])
#: A consumer of some messages, and one of the others.
WORKERS: list[dict[str, Any]] = [
    {"name": "ZERO", "ack_policy": "explicit", "filter_subject": "A.0"},
    {"name": "ONE", "ack_policy": "explicit", "filter_subject": "A.1"},
]
#: One that can be reset to its position, and one that starts there.
READERS: list[dict[str, Any]] = [
    {"name": "C", "ack_policy": "explicit"},
    {"name": "NEW", "ack_policy": "explicit", "deliver_policy": "new"},
]


class Queue(TwoSystems):
    """A work queue or an interest stream, of which workers have finished some messages."""

    def __init__(self, folder: Path, make_server: MakeServer, retention: str, *versions: str) -> None:
        old, new = (make_server(version=v) for v in versions or (None, None))
        super().__init__(folder, old, new, "A" if versions else "B")
        self.retention = retention
        consumers = WORKERS if retention == "workqueue" else READERS
        self.body = {
            "name": "A",
            "subjects": ["A.>"],
            "max_age": "1d",
            "retention": retention,
            "consumers": consumers,
        }
        self.names = [str(consumer["name"]) for consumer in consumers]

    def fill(self, fields: dict[str, Any]) -> None:
        """Publish 60 messages; each consumer finishes 5, and the first one has 3 more."""
        with self.raw("old") as raw:
            for number in range(60):
                assert b'"seq"' in raw.request(f"A.{number % 3}", b"%d" % number)[1]
            for name in self.names:
                stream_content.acknowledge(raw, stream_content.pull_acks(raw, "A", name, 5))
            self.outstanding = stream_content.pull_acks(raw, "A", self.names[0], 3)
            self.remember()

    def remember(self) -> None:
        """Note what is in the stream now, and what its consumers have to do."""
        with self.raw("old") as raw:
            self.expected = stream_content.messages(raw, "A")
            self.unread = Scene.count_unread(raw, "A")


@pytest.fixture
def queue(tmp_path: Path, make_server: MakeServer, request: pytest.FixtureRequest) -> Queue:
    made = Queue(tmp_path, make_server, request.param)
    made.reset()
    return made


@RETENTIONS
def test_it_moves_with_what_is_not_finished(
    retention: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """It moves."""
    queue = Queue(tmp_path, make_server, retention)
    queue.reset()
    plan = queue.apply()
    print([(s.op, s.title) for s in plan.steps])
    print([(c.address, h.code, h.message) for c in plan.resource_changes for h in c.hazards])
    print([(d.code, d.summary, d.detail) for d in plan.diagnostics])
    queue.require_relocated()


@RETENTIONS
@pytest.mark.parametrize("versions", [("2.10.26", "2.10.26"), ("2.11.11", "2.12.8"), ("2.12.8", "2.14.6"), ("2.14.6", "2.15.1"), ("2.10.26", "2.15.1")])
def test_versions(retention: str, versions: tuple[str, str], tmp_path: Path, make_server: MakeServer) -> None:
    """It moves."""
    queue = Queue(tmp_path, make_server, retention, *versions)
    queue.reset()
    queue.apply()
    queue.require_relocated()
