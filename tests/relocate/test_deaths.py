"""A process that dies during a relocation loses nothing; the next apply ends it."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import pytest

from tests.relocate.scene import PERMITTED, RENAMED, TO_HUB, Route, Scene
from tests.support import stream_content
from tests.support.simulated_kill import (
    SimulatedKill,
    kill_after,
    kill_before_phase,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

ROUTES = pytest.mark.parametrize("route", [TO_HUB, RENAMED], ids=["to_hub", "renamed"])


def kill_at_points(scene: Scene, points: Iterable[int]) -> None:
    """Let an apply die after each of these numbers of writes, and apply once more."""
    for point in points:
        scene.reset()
        with kill_after(point), suppress(SimulatedKill):
            scene.space.apply(allow_hazards=PERMITTED)
        scene.require_nothing_lost()
        # What was allowed and has begun needs no permission again.
        _, result = scene.space.apply(allow_hazards=PERMITTED)
        assert [step.error for step in result.steps if step.error] == [], point
        assert result.exit_code == 0, point
        scene.require_relocated()


def count_kill_points(scene: Scene) -> int:
    """Return the number of writes of a whole apply, which is how often it can die."""
    scene.reset()
    with kill_after() as counter:
        scene.space.apply(allow_hazards=PERMITTED)
    scene.require_relocated()
    return counter.done


@ROUTES
def test_death_at_some_writes(route: Route, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """After a death at a random write, one more apply ends the relocation without loss."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    total = count_kill_points(scene)
    assert total > 20

    kill_at_points(scene, sorted(random.Random(4).sample(range(1, total), 5)))


@pytest.mark.soak
@pytest.mark.timeout(1200)
@ROUTES
def test_death_at_every_write(route: Route, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The same for every write."""
    scene = Scene(tmp_path, clean_hub_leaf, route)

    kill_at_points(scene, range(1, count_kill_points(scene)))


class HasSpace(Protocol):
    """A scene with a workspace."""

    space: Space


def die_before_phase(scene: HasSpace, phase: str) -> None:
    """Apply, and die when this phase is about to be recorded."""
    with kill_before_phase(phase), pytest.raises(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)


@pytest.mark.parametrize(
    "phase", ["started", "mirrored", "quiesced", "copied", "compared", "activating", "activated"]
)
def test_a_kill_before_a_phase_is_recorded(
    phase: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """An apply after a kill finds a phase that is done on the servers, but not in state."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, phase)
    scene.require_nothing_lost()

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [step.error for step in result.steps if step.error] == []
    scene.require_relocated()


@ROUTES
@pytest.mark.parametrize("phase", ["mirrored", "copied", "activating"])
def test_the_old_files_bring_the_origin_back(
    route: Route, phase: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """With the old declaration the next apply restores the origin and deletes the copy."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()
    die_before_phase(scene, phase)

    scene.declare_before()
    plan, result = scene.space.apply()

    assert "transfer.undo" in {step.op for step in plan.steps}
    assert [step.error for step in result.steps if step.error] == []
    scene.require_restored()
    assert scene.space.plan().steps == []


def test_the_old_files_after_the_activation(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The plan says that the messages have moved, and how to go back, and names no other entry."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "activated")
    scene.declare_before()

    plan = scene.space.plan()
    (found,) = [d for d in plan.diagnostics if d.severity == "error"]
    assert "was interrupted after its messages had moved, and the files declare" in found.summary
    assert "relocate: [{from: hub/stream/A, to: leaf/stream/A}]" in found.detail


def test_without_the_entry_an_interrupted_relocation_is_an_error(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The files say neither to finish nor to go back: nothing is deleted, and both are named."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "copied")
    scene.space.write(streams=[])

    plan = scene.space.plan()

    assert plan.errored
    assert plan.steps == []
    found = [d for d in plan.diagnostics if d.code == "JS496"]
    assert len(found) == 1
    assert "publishes to A.> are rejected" in found[0].summary
    assert "relocate: [{from: leaf/stream/A, to: hub/stream/A}]" in found[0].detail
    with scene.raw("leaf") as raw:
        assert stream_content.messages(raw, "A") == scene.expected
