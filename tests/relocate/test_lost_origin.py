"""Another client deletes the origin after the activation; the next apply ends it all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.jetstream import DomainApi
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.relocate.scene import PERMITTED, TO_HUB, QueueScene, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.raw import streams
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

LOST = (*PERMITTED, "LOSES_CONSUMER_POSITION", "DELETES_CONSUMER", "DELETES_MESSAGES")


def lose_origin(scene: Scene) -> None:
    """Delete the origin as another client."""
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")


def require_ended(scene: Scene, where: object) -> Plan:
    """Check that the next plan says what happened, and that one apply ends the relocation."""
    began = bool(read_state(scene.space.folder).replacements)
    plan, result = scene.space.apply(allow_hazards=LOST)
    assert [d.summary for d in plan.diagnostics if d.severity == "error"] == [], where
    assert [s.error for s in result.steps if s.error] == [], where
    said = [d for d in plan.diagnostics if d.code == "JS496"]
    assert [len(said), result.exit_code] == [began, 0], where
    if said:
        assert "leaf/stream/A was deleted or recreated outside jsplan after its" in said[0].summary
        assert "To finish the relocation: jsplan apply." in said[0].detail
    state = read_state(scene.space.folder)
    assert (state.pending, state.replacements) == ({}, {}), where
    assert {str(a) for a in state.resources if a.domain == "leaf"} == set(), where
    with scene.raw("hub") as raw:
        listed = raw.api_ok("$JS.API.CONSUMER.LIST.A", {"offset": 0})["consumers"]
        # None is paused, and no placeholder consumer is left.
        assert {c["name"] for c in listed if not c.get("paused")} == scene.unread.keys(), where
        assert len(listed) == len(scene.unread), where
        config = raw.config("A")
        assert config["subjects"] == ["A.>"]
        assert config["retention"] == scene.body.get("retention", "limits")
    again = scene.space.plan()
    assert ([s.title for s in again.steps], [d.summary for d in again.diagnostics]) == ([], [])
    report = drift(scene.space.load, DriftOptions(), RecordingObserver())
    assert report.resource_drift == [], where
    return plan


def test_a_lost_position_is_a_hazard(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A consumer that had not moved starts as declared, with a permission; nothing is lost."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "activated")
    lose_origin(scene)

    plan = scene.space.plan()
    found = {c.address: c.hazards for c in plan.resource_changes}
    for name in scene.unread:
        (hazard,) = found[f"hub/consumer/A/{name}"]
        assert (hazard.code, hazard.allowed) == ("LOSES_CONSUMER_POSITION", False)
        assert hazard.message.startswith(f"leaf/consumer/A/{name} was deleted outside jsplan")
    require_ended(scene, "no position")

    with scene.raw("hub") as raw:
        assert stream_content.messages(raw, "A") == scene.expected
        everything = len(scene.expected)
        assert stream_content.unread(raw, "A") == {"C": everything, "N": everything, "NEW": 0}


def test_a_lost_consumer_is_a_hazard(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """One consumer that another client deleted at the old address starts as declared."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "activated")
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.CONSUMER.DELETE.A.C")

    plan, result = scene.space.apply(allow_hazards=(*PERMITTED, "LOSES_CONSUMER_POSITION"))

    assert [s.error for s in result.steps if s.error] == []
    found = {c.address: [h.code for h in c.hazards] for c in plan.resource_changes}
    assert found["hub/consumer/A/C"] == ["LOSES_CONSUMER_POSITION"]
    assert found["hub/consumer/A/N"] == []
    scene.unread["C"] = len(scene.expected)
    scene.require_relocated()


def test_what_was_not_compared_is_said(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """After a snapshot most is compared after the activation; without an origin that is lost."""
    scene = QueueScene(tmp_path, clean_hub_leaf, "interest")
    scene.count = 600
    scene.reset()
    die_before_phase(scene, "activated")
    lose_origin(scene)

    (found,) = [d for d in scene.space.plan().diagnostics if d.code == "JS496"]

    assert "Those of sequence 1 to 100 were not compared by content." in found.detail
    require_ended(scene, "not compared")


def test_the_target_can_be_deleted_too(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """With neither side in the files any more, one apply deletes the target and the record."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    die_before_phase(scene, "activated")
    lose_origin(scene)
    scene.space.write()

    _, result = scene.space.apply(allow_hazards=("DELETES_STREAM",))

    assert [s.error for s in result.steps if s.error] == []
    with scene.raw("hub") as raw:
        assert streams(raw) == []
    state = read_state(tmp_path)
    assert (state.resources, state.replacements, state.pending) == ({}, {}, {})
    assert scene.space.plan().diagnostics == []


def test_an_origin_that_goes_during_the_apply(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """The step says that the position is not known, and the next apply ends the relocation."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    with pytest.MonkeyPatch.context() as patch:
        request, left = DomainApi.request, [1]

        async def losing(api: DomainApi, verb: str, payload: Any = None, **options: Any) -> Any:
            answer = await request(api, verb, payload, **options)
            takes = verb == "STREAM.UPDATE.A" and (payload or {}).get("subjects") == ["A.>"]
            if takes and left.pop():
                lose_origin(scene)
            return answer

        patch.setattr(DomainApi, "request", losing)
        _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 6
    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert failed
    assert all("leaf/stream/A was deleted or recreated by another client" in f for f in failed)
    require_ended(scene, "during the apply")
