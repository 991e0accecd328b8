"""A process that dies during a preserving replacement loses nothing; the next apply ends it."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support import stream_content
from tests.support.process import jsplan
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.simulated_kill import SimulatedKill, kill_after, kill_before_phase
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, Space, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

PERMITTED = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES", "IRREVERSIBLE")
CONSUMERS = [{"name": "C", "ack_policy": "explicit"}, {"name": "N", "ack_policy": "none"}]
BEFORE: dict[str, Any] = {"name": "A", "subjects": ["A.>"], "max_age": "1d", "consumers": CONSUMERS}
AFTER: dict[str, Any] = BEFORE | {
    "storage": "memory",
    "max_age": "2d",
    "lifecycle": {"on_replace": "preserve"},
}


class Scene:
    """One stream with messages, gaps and consumers, made the same way each time."""

    def __init__(self, space: Space, server: Server, body: dict[str, Any], count: int) -> None:
        self.space = space
        self.server = server
        self.body = body
        self.count = count
        self.expected: list[stream_content.Message] = []

    def reset(self, after: dict[str, Any]) -> None:
        """Empty the server, apply the first files, publish, and write the files `after`."""
        with Raw(self.server.url) as raw:
            delete_all_streams(raw)
            shutil.rmtree(self.space.folder / "state", ignore_errors=True)
            self.space.write(streams=[self.body]).apply()
            raw.consumer("A", "OTHERS")
            stream_content.fill(raw, "A", self.count)
            raw.delete("A", self.count // 2, self.count)
            raw.ack(raw.pull("A", "C", 10))
            self.expected = stream_content.messages(raw, "A")
        self.space.write(streams=[after])

    def require_nothing_lost(self) -> None:
        """Check that some stream has every message, and that drift reports no change."""
        with Raw(self.server.url) as raw:
            payloads = {m[3] for name in streams(raw) for m in stream_content.messages(raw, name)}
        assert payloads >= {m[3] for m in self.expected}
        report = drift(self.space.load, DriftOptions(), RecordingObserver())
        assert report.resource_drift == []
        assert {u.address for u in report.unmanaged} <= {"main/consumer/A/OTHERS"}

    def require_preserved(self) -> None:
        """Check that messages and consumer positions were preserved and no orphan is left."""
        with Raw(self.server.url) as raw:
            assert streams(raw) == ["A"]
            assert stream_content.messages(raw, "A") == self.expected
            assert stream_content.unread(raw, "A")["C"] == len(self.expected) - 10
            raw.request("A.after", b"")
        state = read_state(self.space.folder)
        assert (state.pending, state.replacements) == ({}, {})
        assert {str(a) for a in state.resources} >= {"main/stream/A", "main/consumer/A/C"}
        again = self.space.plan()
        assert ([s.title for s in again.steps], [d.summary for d in again.diagnostics]) == ([], [])


def test_a_killed_copy_is_shown_and_resumed(tmp_path: Path, server: Server) -> None:
    """After a kill during the copy, the plan says where the messages are; apply ends it."""
    scene = Scene(single_space(tmp_path, server), server, BEFORE, 5_000)
    scene.reset(AFTER)
    with kill_before_phase("copied"), pytest.raises(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)

    planned = jsplan(tmp_path, "plan")
    assert planned.code == 0
    assert (
        "A is down: publishes to A.> are rejected, because its replacement was interrupted"
        in planned.text
    )
    assert "Its messages are in the old stream" in planned.text
    assert (
        jsplan(tmp_path, "apply", "-y", *(f"--allow-hazard={code}" for code in PERMITTED)).code == 0
    )
    scene.require_preserved()


def test_outside_changes_during_a_replacement_stop_it(tmp_path: Path, server: Server) -> None:
    """With both streams gone their domain is deferred; another stream is an error."""
    scene = Scene(single_space(tmp_path, server), server, BEFORE, 60)
    scene.reset(AFTER)
    with kill_after(12), suppress(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)
    with Raw(server.url) as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
        for stream in streams(raw):
            raw.api_ok(f"$JS.API.STREAM.DELETE.{stream}")
        gone = scene.space.plan()
        raw.create("A", subjects=["A.>"])
        other = scene.space.plan()

    assert (gone.errored, gone.steps) == (False, [])
    assert all("jsplan apply --reinstalled main" in found.reason for found in gone.deferred)
    assert (other.errored, other.steps) == (True, [])
    assert any(d.code == "JS424" and "outside jsplan" in d.summary for d in other.diagnostics)


def test_an_interrupted_replacement_blocks_deletion(tmp_path: Path, server: Server) -> None:
    """A stream under replacement is neither destroyed nor deleted."""
    scene = Scene(single_space(tmp_path, server), server, BEFORE, 60)
    scene.reset(AFTER)
    with kill_after(12), suppress(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)
    plans = [scene.space.plan(destroy=True), scene.space.write(streams=[]).plan()]

    for plan in plans:
        assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS424"]
        assert plan.steps == []
    scene.space.write(streams=[AFTER]).apply(allow_hazards=PERMITTED)
    scene.require_preserved()


def test_files_without_preserve_end_the_replacement(tmp_path: Path, server: Server) -> None:
    """Once the old stream is gone, files without `preserve` end the replacement too."""
    scene = Scene(single_space(tmp_path, server), server, BEFORE, 60)
    scene.reset(AFTER)
    with Raw(server.url) as raw:
        point = 12
        while "A" in streams(raw):
            scene.reset(AFTER)
            with kill_after(point), suppress(SimulatedKill):
                scene.space.apply(allow_hazards=PERMITTED)
            point += 1
    plan, result = scene.space.write(streams=[BEFORE]).apply()

    assert [d.code for d in plan.diagnostics] == ["JS424"]
    assert "Its messages are in main/stream/JSPLAN_STAGING_A" in plan.diagnostics[0].summary
    assert result.exit_code == 0
    scene.require_preserved()
