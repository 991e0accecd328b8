"""Work queues and interest streams move by a snapshot, while their workers continue."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED
from tests.relocate.systems import TwoSystems
from tests.relocate.test_deaths import die_before_phase
from tests.relocate.test_failures import at_first_request
from tests.support import stream_content
from tests.support.refused_request import refuse_request

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from tests.conftest import MakeServer
    from tests.support.raw import Raw

ALL_HAZARDS = (*PERMITTED, "DELETES_CONSUMER", "DELETES_MESSAGES")
VERSIONS = [
    ("2.12.8", "2.12.8"),
    ("2.12.8", "2.14.6"),
    ("2.14.6", "2.15.1"),
    ("2.12.8", "2.15.1"),
]

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

    def __init__(
        self, folder: Path, make_server: MakeServer, retention: str, *versions: str
    ) -> None:
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
        #: Messages of a consumer that stays: the others have finished one of an interest stream.
        self.staying = 20 if retention == "workqueue" else 19

    def fill(self, raw: Raw) -> None:
        """Publish 60 messages."""
        for number in range(60):
            assert b'"seq"' in raw.request(f"A.{number % 3}", b"%d" % number)[1]

    def work(self, raw: Raw) -> None:
        """Let each consumer finish 5 messages, and the first one take 3 more."""
        for name in self.names:
            raw.ack(raw.pull("A", name, 5))
        self.outstanding = raw.pull("A", self.names[0], 3)

    def add_consumer_that_stays(self) -> None:
        """Create a consumer that no file declares, of messages that the others have finished."""
        with self.raw("old") as raw:
            raw.consumer("A", "STAYS", filter_subject="A.2")
            if self.retention == "interest":
                raw.ack(self.outstanding)
                for name in self.names:
                    left = stream_content.unread(raw, "A")[name]
                    acks = raw.pull("A", name, left)
                    raw.ack(acks)
            self.remember(raw)
        del self.unread["STAYS"]
        if self.retention == "interest":
            self.expected = []

    def require_restored(self) -> None:
        """Check that the old server has the stream and its consumers as they were."""
        super().require_restored()
        with self.raw("old") as raw:
            assert raw.config("A")["retention"] == self.retention

    def require_relocated(self) -> None:
        """Check the new server, and that no placeholder consumer is left there."""
        super().require_relocated()
        with self.raw("new") as raw:
            info = raw.api_ok(f"$JS.API.STREAM.INFO.{self.name}")
            assert info["config"]["retention"] == self.retention
            assert info["state"]["consumer_count"] == len(self.names)


@pytest.fixture(params=["workqueue", "interest"])
def queue(tmp_path: Path, make_server: MakeServer, request: pytest.FixtureRequest) -> Queue:
    """A work queue or an interest stream, and two servers of the newest version."""
    made = Queue(tmp_path, make_server, request.param)
    made.reset()
    return made


def hazards(plan: Plan) -> dict[str, int | None]:
    """Return the number of messages of each hazard."""
    return {h.code: h.messages for change in plan.resource_changes for h in change.hazards}


def test_a_queue_moves_with_what_is_not_finished(queue: Queue) -> None:
    """Messages and positions stay; what workers have now is delivered again, with its number."""
    plan = queue.apply()

    assert hazards(plan)["DUPLICATES_MESSAGES"] == 3
    notes = [d.summary for d in plan.diagnostics if d.code == "JS498"]
    assert len(notes) == 1
    assert f"old/stream/A has {queue.retention} retention, and a mirror would" in notes[0]
    queue.require_relocated()


@pytest.mark.download
@RETENTIONS
@pytest.mark.parametrize("versions", VERSIONS, ids="-".join)
def test_every_version_moves_queues(
    versions: tuple[str, str], retention: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """The same under the same name, between servers of different releases."""
    queue = Queue(tmp_path, make_server, retention, *versions)
    queue.reset()
    queue.add_consumer_that_stays()

    plan = queue.apply(allow_hazards=ALL_HAZARDS)

    found = hazards(plan)
    assert found["DELETES_CONSUMER"] == queue.staying
    name, count = ("DELETES", 19) if retention == "interest" else ("DUPLICATES", 3)
    assert found[f"{name}_MESSAGES"] == count
    queue.require_relocated()


@pytest.mark.parametrize("at", ["STREAM.RESTORE.B", "STREAM.UPDATE.B"], ids=["copy", "activation"])
def test_what_workers_finish_meanwhile_is_not_delivered_again(at: str, queue: Queue) -> None:
    """Acknowledgements at the old place count until the consumer moves."""

    def finish() -> None:
        with queue.raw("old") as raw:
            raw.ack(queue.outstanding)
            queue.remember(raw)

    with at_first_request(at, "new", finish):
        queue.apply()

    queue.require_relocated()


def test_a_queue_without_messages_keeps_its_sequences(queue: Queue) -> None:
    """The next message of an empty stream gets the sequence after the last one."""
    with queue.raw("old") as raw:
        raw.api_ok("$JS.API.STREAM.PURGE.A")
    with queue.raw("old") as raw:
        queue.remember(raw)

    queue.apply()

    queue.require_relocated()
    with queue.raw("new") as raw:
        assert json.loads(raw.request("A.0", b"next")[1])["seq"] == 61


def test_a_consumer_that_does_not_come_along(queue: Queue) -> None:
    """Its messages stay in a work queue. An interest stream deletes them, which the plan counts."""
    queue.add_consumer_that_stays()

    found = hazards(queue.space.plan())
    queue.apply(allow_hazards=ALL_HAZARDS)

    assert found["DELETES_CONSUMER"] == queue.staying
    assert found.get("DELETES_MESSAGES") == (19 if queue.retention == "interest" else None)
    queue.require_relocated()


def test_an_interrupted_cutover_needs_no_permission_again(queue: Queue) -> None:
    """Messages finished between two applies are neither a deletion nor delivered again."""
    die_before_phase(queue, "copied")
    with queue.raw("old") as raw:
        raw.ack(queue.outstanding)
        for name in queue.names:
            raw.ack(raw.pull("A", name, 10))
    with queue.raw("old") as raw:
        queue.remember(raw)
    if queue.retention == "interest":  # it has limits retention now, and so keeps what is finished
        queue.expected = [message for message in queue.expected if message[0] > 15]

    queue.apply()

    queue.require_relocated()


def test_a_rehearsal_runs_every_step(queue: Queue) -> None:
    """On embedded servers of the same shape no step is refused."""
    plan = queue.space.plan(allow_hazards=PERMITTED, rehearse=True)

    assert plan.rehearsal is not None
    assert (plan.rehearsal.refused, plan.rehearsal.not_tried) == (0, 0)


@pytest.mark.parametrize("verb", ["STREAM.RESTORE.B", "STREAM.UPDATE.B"])
def test_a_refusal_restores_the_origin(verb: str, queue: Queue) -> None:
    """A step that fails before the activation gives the origin its subjects back at once."""
    with refuse_request(verb, 1):
        _, result = queue.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 6
    queue.require_restored()
    queue.apply()
    queue.require_relocated()


@pytest.mark.parametrize(
    ("retention", "fields", "text"),
    [
        ("workqueue", {"retention": "limits"}, "has workqueue retention, and new/stream/B limits"),
        ("interest", {"retention": "limits"}, "has interest retention, and new/stream/B limits"),
        ("workqueue", {"deny_delete": True}, "new/stream/B denies deletions"),
        ("interest", {"max_consumers": 2}, "leaves no place for the placeholder consumer"),
        (
            "interest",
            {"consumer_limits": {"inactive_threshold": "1m"}},
            "may delete the placeholder consumer",
        ),
    ],
)
def test_what_cannot_move_is_refused(
    retention: str, fields: dict[str, Any], text: str, tmp_path: Path, make_server: MakeServer
) -> None:
    """The plan says why, and nothing is changed."""
    queue = Queue(tmp_path, make_server, retention)
    queue.reset()
    queue.declare_after(**fields)

    require_refused(queue, text)


def test_a_queue_that_is_sourced_is_refused(queue: Queue) -> None:
    """The stream that sources it consumes its messages too: it is taken out before."""
    copy = {"name": "M", "domain": "old", "sources": [{"name": "A"}]}
    queue.space.write(streams=[queue.body | {"domain": "old"}, copy])
    queue.space.apply(allow_hazards=ALL_HAZARDS)
    queue.space.write(
        streams=[queue.body | {"name": "B", "domain": "new"}, copy],
        relocate=[{"from": "old/stream/A", "to": "new/stream/B"}],
    )

    require_refused(queue, "old/stream/M sources it, and consumes its messages")


def require_refused(queue: Queue, text: str) -> None:
    """Check that the plan refuses the relocation with this text."""
    plan = queue.space.plan()
    found = [d for d in plan.diagnostics if d.severity == "error"]
    assert [d.code for d in found] == ["JS495"]
    assert text in found[0].summary
    assert plan.steps == []
