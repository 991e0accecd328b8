"""A process that dies during a preserving replacement loses nothing; the next apply ends it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tests.preserve.conftest import AFTER, BEFORE, PERMITTED, ROW
from tests.support.raw import Raw, streams
from tests.support.simulated_kill import SimulatedKill, kill_after, kill_before_phase

if TYPE_CHECKING:
    from jsplan.sandbox import Server
    from tests.kills.scene import Scene


def test_a_killed_copy_is_shown_and_resumed(scene: Scene) -> None:
    """After a kill during the copy, the plan says where the messages are; apply ends it."""
    scene.row = replace(ROW, messages=5_000)
    scene.reset()
    with kill_before_phase("copied"), pytest.raises(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)

    planned = scene.space.run("plan")
    assert planned.code == 0
    assert (
        "A is down: publishes to A.> are rejected, because its replacement was interrupted"
        in planned.text
    )
    assert "Its messages are in the old stream" in planned.text
    permitted = (f"--allow-hazard={code}" for code in PERMITTED)
    assert scene.space.run("apply", "-y", *permitted).code == 0
    scene.require_finished()


def test_outside_changes_during_a_replacement_stop_it(scene: Scene, server: Server) -> None:
    """With both streams gone their domain is deferred; another stream is an error."""
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


def test_an_interrupted_replacement_blocks_deletion(scene: Scene, server: Server) -> None:
    """A stream under replacement is neither destroyed nor deleted."""
    with kill_after(12), suppress(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)
    plans = [scene.space.plan(destroy=True), scene.space.write(streams=[]).plan()]

    for plan in plans:
        assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS424"]
        assert plan.steps == []
    scene.space.write(streams=[AFTER]).apply(allow_hazards=PERMITTED)
    scene.require_finished()


def test_files_without_preserve_end_the_replacement(scene: Scene, server: Server) -> None:
    """Once the old stream is gone, files without `preserve` end the replacement too."""
    with Raw(server.url) as raw:
        point = 12
        while "A" in streams(raw):
            scene.reset()
            with kill_after(point), suppress(SimulatedKill):
                scene.space.apply(allow_hazards=PERMITTED)
            point += 1
    plan, result = scene.space.write(streams=[BEFORE]).apply()

    assert [d.code for d in plan.diagnostics] == ["JS424"]
    assert "Its messages are in main/stream/JSPLAN_STAGING_A" in plan.diagnostics[0].summary
    assert result.exit_code == 0
    scene.require_taken_back()
