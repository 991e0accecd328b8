"""A replacement that fails at any step loses nothing, is reported, and can be ended."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.drift.service.alerts import build_alerts
from jsplan.errors import ExitCode
from jsplan.options import DriftOptions
from jsplan.render import drift_rows
from jsplan.resources.server_features import IMMEDIATE_LIMIT_LEVEL
from jsplan.sandbox import versions
from jsplan.sandbox.versions import parse_version
from jsplan.workflows.drift import drift
from jsplan.workflows.revert import RevertOptions, revert
from jsplan.workflows.status import status
from tests.conftest import PROGRAM
from tests.preserve.conftest import AFTER, BEFORE, PERMITTED
from tests.preserve.test_streams import level
from tests.support.raw import NoResponders, Raw, streams
from tests.support.refused_request import refuse_request
from tests.support.simulated_kill import SimulatedKill, kill_at_request
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, approve, single_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.kills.scene import Scene

pytestmark = pytest.mark.matrix

#: The API level of the server: from 5 on it restores archives.
LEVEL = level(parse_version(versions.read_version(PROGRAM)))
ARCHIVES = LEVEL >= 5
#: The request of each step: its verb, and its number among the requests with that verb.
BEFORE_DELETION = {
    "probe": ("STREAM.CREATE.JSPLAN_STAGING", 1),
    "probe-at-last": ("STREAM.UPDATE.JSPLAN_STAGING", 1),
    "stop": ("STREAM.UPDATE.A", 1),
    "mirror": ("STREAM.CREATE.JSPLAN_STAGING", 2),
    "rest": ("STREAM.UPDATE.JSPLAN_STAGING", 2),
    "retire": ("STREAM.DELETE.A", 1),
    "hold": ("CONSUMER.PAUSE.A", 1),
}
REFILL = "STREAM.RESTORE.A" if ARCHIVES else "STREAM.CREATE.A"
AFTER_DELETION = {
    "refill": (REFILL, 1),
    "resume": ("CONSUMER.PAUSE.A", 4) if ARCHIVES else ("CONSUMER.CREATE.A", 2),
    "return": ("STREAM.UPDATE.A", 2 if ARCHIVES else 3),
}


def is_rejected(scene: Scene) -> bool:
    """Return True if no stream takes a published message."""
    with scene.raw("main") as raw:
        try:
            raw.request("A.try", b"")
        except NoResponders:
            return True
    return False


def require_unchanged(scene: Scene) -> None:
    """Check that the old stream takes messages again and that no orphan is left."""
    assert drift(scene.space.load, DriftOptions(), RecordingObserver()).exit_code == 0
    scene.space.write(streams=[BEFORE])
    scene.require_taken_back()
    with scene.raw("main") as raw:
        assert raw.config("A")["storage"] == "file"


@pytest.mark.parametrize("step", BEFORE_DELETION)
def test_a_refusal_before_the_old_stream_is_gone_changes_nothing(step: str, scene: Scene) -> None:
    """Apply exits with 6, the old stream keeps its messages, and no orphan is left."""
    with refuse_request(*BEFORE_DELETION[step]):
        _, result = scene.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert (result.exit_code, len(failed), result.interrupted) == (6, 1, [])
    assert "insufficient memory resources available" in failed[0]
    assert failed[0].endswith(
        "the origin has its subjects back, and nothing of it is lost"
        if step in ("hold", "rest", "retire")
        else "the stream was not touched"
    )
    require_unchanged(scene)


def test_the_sources_of_a_stream_that_stays_continue(
    tmp_path: Path, server: Server, server_version: tuple[int, ...]
) -> None:
    """A replacement that failed lets sources continue, also behind deleted messages."""
    if server_version < (2, 15):
        return  # an older server does not say where a source continues
    origin = {"name": "O", "subjects": ["o"]}
    copy: dict[str, Any] = {"name": "A", "sources": [{"name": "O"}]}
    space = single_space(tmp_path, server).write(streams=[origin, copy])
    space.apply()
    with Raw(server.url) as raw:

        def count(field: str) -> int:
            return int(raw.state("A")[field])

        for _ in range(10):
            raw.request("o", b"old")
        server.wait_until(lambda: count("last_seq") == 10, "copy")
        raw.api_ok("$JS.API.STREAM.PURGE.A")
        changed = copy | {"storage": "memory", "lifecycle": {"on_replace": "preserve"}}
        space.write(streams=[origin, changed])
        with refuse_request("STREAM.UPDATE.JSPLAN_STAGING", 2):
            _, result = space.apply(allow_hazards=PERMITTED)
        assert any("the origin has its subjects back" in (s.error or "") for s in result.steps)
        for _ in range(5):
            raw.request("o", b"new")
        server.wait_until(lambda: count("last_seq") >= 15, "copy again")
        assert (count("messages"), count("last_seq")) == (5, 15)
    assert space.write(streams=[origin, copy]).plan().steps == []


def failure_cases() -> Iterator[Any]:
    """Yield a refusal at each step after the old stream is gone, and two deaths."""
    for step, where in AFTER_DELETION.items():
        yield pytest.param(lambda where=where: refuse_request(*where), id=f"refused-{step}")
    yield pytest.param(
        lambda: kill_at_request("STREAM.DELETE.A", answered=True), id="killed-retire"
    )
    yield pytest.param(lambda: kill_at_request(REFILL, answered=True), id="killed-refill")


FAILURES = pytest.mark.parametrize("failing", list(failure_cases()))


def fail(scene: Scene, failing: Any) -> None:
    """Let the apply fail after the old stream is gone, and check the reports."""
    result = None
    with failing(), suppress(SimulatedKill):
        _, result = scene.space.apply(allow_hazards=PERMITTED)
    assert result is None or result.exit_code == 6
    drift_report, status_report = (
        drift(scene.space.load, DriftOptions(fail_on=frozenset({"missing"})), RecordingObserver()),
        status(scene.space.load, RecordingObserver()),
    )
    planned = [d for d in scene.space.plan().diagnostics if d.code == "JS424"]

    (alert,) = build_alerts(drift_report, ())
    assert (alert.kind, alert.severity, alert.summary) == (
        "interrupted",
        "destructive",
        drift_report.interrupted[0]["summary"],
    )
    assert next(row.kind for row in drift_rows.rows(drift_report)) == "interrupted"
    assert is_rejected(scene)
    scene.require_nothing_lost()
    assert drift_report.exit_code == ExitCode.CHANGES
    assert drift_report.summary["unhealthy"] == 1
    assert [(s["address"], s["down"]) for s in status_report.streams if s["down"]] == [
        ("main/stream/A", True)
    ]
    for interrupted in (
        drift_report.interrupted,
        status_report.interrupted,
        *([result.interrupted] if result is not None else []),
    ):
        assert [item["rejected"] for item in interrupted] == [["A.>"]]
        assert interrupted[0]["summary"].startswith(
            "A is down: publishes to A.> are rejected, because its replacement was interrupted. "
        )
        assert [interrupted[0]["summary"]] == [d.summary for d in planned]
        assert "To finish it: jsplan apply." in interrupted[0]["detail"]


@FAILURES
def test_the_next_apply_ends_the_replacement(failing: Any, scene: Scene) -> None:
    """An apply without flags makes the stream as the files say, with all messages."""
    fail(scene, failing)
    plan, result = scene.space.apply()

    assert [s.error for s in result.steps if s.error] == []
    assert [h.code for c in plan.resource_changes for h in c.hazards if not h.allowed] == []
    assert "REMOVES_SUBJECTS" not in {h.code for c in plan.resource_changes for h in c.hazards}
    scene.require_finished()
    with scene.raw("main") as raw:
        assert raw.config("A")["storage"] == "memory"


@FAILURES
def test_the_old_files_roll_back(failing: Any, scene: Scene) -> None:
    """With the old files, an apply without flags restores the stream with all messages."""
    fail(scene, failing)
    _, result = scene.space.write(
        streams=[BEFORE | {"lifecycle": {"prevent_destroy": True}}]
    ).apply()

    assert [s.error for s in result.steps if s.error] == []
    scene.require_taken_back()
    with scene.raw("main") as raw:
        config = raw.config("A")
        assert (config["storage"], config["max_age"]) == ("file", 86_400 * 10**9)


@FAILURES
def test_a_revert_rolls_back(failing: Any, scene: Scene) -> None:
    """A revert of the failed apply restores the stream with all messages."""
    fail(scene, failing)
    number = read_state(scene.space.folder).history[-1]["id"]
    _, result = revert(scene.space.load, RevertOptions(number), approve, RecordingObserver())

    assert [s.error for s in result.steps if s.error] == []
    scene.space.write(streams=[BEFORE])
    scene.require_taken_back()
    with scene.raw("main") as raw:
        config = raw.config("A")
        assert (config["storage"], config["max_age"]) == ("file", 86_400 * 10**9)


def test_the_files_change_the_storage_after_a_failure(scene: Scene) -> None:
    """Files with a third storage replace the new stream once more, with all messages."""
    fail(scene, lambda: refuse_request(*AFTER_DELETION["return"]))
    other = AFTER | {"storage": "file", "max_bytes": "1MiB"}
    _, result = scene.space.write(streams=[other]).apply()

    assert [s.error for s in result.steps if s.error] == []
    scene.require_finished()
    with scene.raw("main") as raw:
        config = raw.config("A")
        assert (config["storage"], config["max_bytes"], streams(raw)) == ("file", 1 << 20, ["A"])


def test_the_files_lower_a_limit_after_a_failure(scene: Scene) -> None:
    """Limits that became lower are counted, and refused until they are allowed."""
    fail(scene, lambda: refuse_request(*AFTER_DELETION["return"]))
    plan = scene.space.write(streams=[AFTER | {"max_msgs": 56}]).plan()
    hazards = {
        h.code: (h.messages, h.exact, h.allowed) for c in plan.resource_changes for h in c.hazards
    }

    assert hazards["DELETES_MESSAGES"] == (2, True, False)
    _, result = scene.space.apply(allow_hazards=("DELETES_MESSAGES",))
    assert result.exit_code == 0
    with scene.raw("main") as raw:
        assert raw.state("A")["messages"] == 56


def test_a_death_before_quiescing_rejects_no_publisher(scene: Scene) -> None:
    """A probe stream left by a dead apply rejects no publisher, and the next apply removes it."""
    with kill_at_request("STREAM.UPDATE.JSPLAN_STAGING", answered=True), suppress(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)
    drift_report, status_report = (
        drift(scene.space.load, DriftOptions(), RecordingObserver()),
        status(scene.space.load, RecordingObserver()),
    )

    assert [item["rejected"] for item in drift_report.interrupted] == [[]]
    assert (
        drift_report.interrupted[0]["summary"]
        == "the replacement of A was interrupted. Its messages are in the old stream"
    )
    assert [s["down"] for s in status_report.streams] == [False]
    _, result = scene.space.write(streams=[BEFORE]).apply()
    assert result.exit_code == 0
    require_unchanged(scene)


def test_more_messages_of_a_subject_than_allowed(space: Space, raw: Raw) -> None:
    """A server that keeps what a lowered limit forbids until the next message names the way."""
    stream: dict[str, object] = {
        "name": "L",
        "subjects": ["l.>"],
        "lifecycle": {"on_replace": "preserve"},
    }
    space.write(streams=[stream]).apply()
    for _ in range(3):
        raw.request("l.a", b"")
    stream["max_msgs_per_subject"] = 2
    space.write(streams=[stream]).apply(allow_hazards=("DELETES_MESSAGES",))
    space.write(streams=[stream | {"retention": "workqueue"}])
    if LEVEL < IMMEDIATE_LIMIT_LEVEL:
        _, result = space.apply(allow_hazards=PERMITTED)
        (error,) = (step.error for step in result.steps if step.status == "failed")
        assert "nats stream purge L --subject l.a --keep 2" in str(error)
        raw.api_ok("$JS.API.STREAM.PURGE.L", {"filter": "l.a", "keep": 2})
    assert space.apply(allow_hazards=PERMITTED)[1].exit_code == 0
    assert raw.count("L") == 2
