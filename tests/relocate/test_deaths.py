"""A process that dies during a relocation loses nothing; the next apply ends it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from tests.relocate.scene import PERMITTED, TO_HUB, Scene
from tests.support import stream_content
from tests.support.simulated_kill import (
    SimulatedKill,
    kill_before_phase,
)

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space


class HasSpace(Protocol):
    """A scene with a workspace."""

    space: Space


def die_before_phase(scene: HasSpace, phase: str) -> None:
    """Apply, and die when this phase is about to be recorded."""
    with kill_before_phase(phase), pytest.raises(SimulatedKill):
        scene.space.apply(allow_hazards=PERMITTED)


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
