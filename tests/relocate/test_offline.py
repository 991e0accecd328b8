"""A domain of a relocation is paused or stopped: publishers do not wait for it unannounced."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.relocate.scene import PERMITTED, TO_LEAF, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.leaf_loss import bring_back, strike_at
from tests.support.process import jsplan
from tests.support.workspaces import RecordingObserver, left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeHubLeaf


def origin_subjects(scene: Scene) -> list[str]:
    """Return the subjects of the origin, asked at its own server."""
    with scene.raw(scene.before) as raw:
        found: list[str] = raw.config("A")["subjects"]
        return found


def make_scene(folder: Path, make_hub_leaf: MakeHubLeaf) -> Scene:
    """A stream that moves to the leaf, with servers of its own and requests that wait a second."""
    sandbox = make_hub_leaf()
    scene = Scene(folder, sandbox, TO_LEAF)
    scene.space.base["connections"]["hub"]["timeout"] = "1s"
    return scene


def test_publishers_do_not_wait_for_a_lost_target(
    tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """Apply gives the origin its subjects back while the leaf is stopped, and continues later."""
    scene = make_scene(tmp_path, make_hub_leaf)
    scene.reset()
    die_before_phase(scene, "copied")
    scene.server("leaf").stop()

    plan = scene.space.plan()
    (warning,) = [d for d in plan.diagnostics if d.code == "JS496"]
    assert "publishes to A.> are rejected" in warning.summary
    assert "leaf is offline. Its messages are in hub/stream/A" in warning.summary
    assert "jsplan apply gives hub/stream/A its subjects back" in warning.detail
    for found in (
        drift(scene.space.load, DriftOptions(), RecordingObserver()).interrupted,
        status(scene.space.load, RecordingObserver()).interrupted,
    ):
        assert [item["summary"] for item in found] == [warning.summary]
    _, result = scene.space.apply()

    assert ([s.op for s in result.steps], result.exit_code) == (["transfer.release"], 0)
    with scene.raw("hub") as raw:
        assert b'"seq"' in raw.request("A.1", b"while the leaf is stopped")[1]
        scene.expected = stream_content.messages(raw, "A")
        scene.unread = {name: count + 1 for name, count in scene.unread.items()}
    assert left_to_do(scene.space.plan()) == []
    bring_back(scene.sandbox)
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()


def test_a_target_that_never_comes_back_is_given_up(
    tmp_path: Path, make_hub_leaf: MakeHubLeaf
) -> None:
    """Without the domain of the target in the files, `state rm` leads back to the origin."""
    scene = make_scene(tmp_path, make_hub_leaf)
    scene.reset()
    die_before_phase(scene, "copied")
    scene.server("leaf").stop()
    scene.space.base["domains"] = {"hub": {"connection": "hub"}}
    scene.declare_before()

    (error,) = [d for d in scene.space.plan().diagnostics if d.severity == "error"]

    assert "It cannot be resumed: leaf is no longer declared" in error.summary
    assert error.detail.endswith("jsplan state rm leaf/stream/A")
    assert jsplan(tmp_path, "state", "rm", "leaf/stream/A").code == 0
    _, result = scene.space.apply(allow_hazards=("REMOVES_SUBJECTS",))
    assert [s.error for s in result.steps if s.error] == []
    assert origin_subjects(scene) == ["A.>"]
    with scene.raw("hub") as raw:
        assert stream_content.messages(raw, "A") == scene.expected


def test_an_unanswered_activation_is_reported(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """The target may have its subjects, so the origin gets none, and plan and apply say so."""
    scene = make_scene(tmp_path, make_hub_leaf)
    scene.reset()
    with strike_at(-1, "", lambda: None) as seen:
        scene.space.apply(allow_hazards=PERMITTED)
    activation = [n for n, verb in enumerate(seen) if verb == "leaf STREAM.UPDATE.A"][1]
    scene.reset()

    with strike_at(activation, "before", scene.server("leaf").pause):
        _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 6
    (failed,) = [s for s in result.steps if s.op == "transfer.activate"]
    assert failed.status == "unknown"
    assert "leaf/stream/A may have its subjects already. The next apply" in (failed.error or "")
    (reported,) = result.interrupted
    assert "publishes to A.> are rejected" in reported["summary"]
    assert reported["detail"] == "When leaf answers again: jsplan apply."
    plan = scene.space.plan()
    assert left_to_do(plan) == []
    assert [d.summary for d in plan.diagnostics if d.code == "JS496"] == [reported["summary"]]
    bring_back(scene.sandbox)
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()
