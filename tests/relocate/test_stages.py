"""`--stage prepare` copies and nothing else; `--stage cutover` finishes it days later."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.options import DriftOptions
from jsplan.render.status_text import render_text
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.relocate.scene import BODY, PERMITTED, RENAMED, TO_HUB, Route, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.raw import streams
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox

ROUTES = pytest.mark.parametrize("route", [TO_HUB, RENAMED], ids=["to_hub", "renamed"])


def prepare(scene: Scene) -> Plan:
    """Apply the first stage, which needs no permission."""
    plan, result = scene.space.apply(stage="prepare")
    assert [s.error for s in result.steps if s.error] == []
    assert result.exit_code == 0
    return plan


def config_of(scene: Scene, domain: str, name: str) -> dict[str, Any]:
    """Return the configuration of a stream as its server has it."""
    with scene.raw(domain) as raw:
        config: dict[str, Any] = raw.config(name)
        return config


def publish(scene: Scene, *numbers: int) -> None:
    """Publish these messages to the origin, and expect them at the new address."""
    with scene.raw(scene.before) as raw:
        for number in numbers:
            assert b'"seq"' in raw.request("A.1", b"later %d" % number)[1]
        scene.expected = stream_content.messages(raw, "A")
    scene.unread = {name: count + len(numbers) for name, count in scene.unread.items()}


@ROUTES
def test_prepare_copies_and_touches_nothing(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The origin keeps subjects, messages and consumers; the copy follows it; plans are quiet."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()
    before = config_of(scene, scene.before, "A")

    plan = prepare(scene)

    assert [s.op for s in plan.steps] == ["transfer.mirror", "transfer.compare"]
    assert [c.address for c in plan.resource_changes] == [scene.target]
    assert plan.summary["destroy"] == 0
    assert not plan.complete
    assert config_of(scene, scene.before, "A") == before
    copy = config_of(scene, scene.after, scene.name)
    assert copy["mirror"]["name"] == "A"
    assert copy["max_age"] == before["max_age"] + 3600 * 10**9
    publish(scene, 1, 2)
    with scene.raw(scene.after) as raw:
        scene.server(scene.after).wait_until(
            lambda: stream_content.messages(raw, scene.name) == scene.expected, "follow", 20
        )
    again = scene.space.plan(stage="prepare")
    assert (again.steps, again.resource_changes, again.errored) == ([], [], False)
    report = drift(scene.space.load, DriftOptions(), RecordingObserver())
    assert (report.resource_drift, report.unmanaged, report.interrupted) == ([], [], [])


@ROUTES
def test_the_cutover_finishes_a_prepared_relocation(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Publishes between both stages arrive; the cut-over needs the permission of the whole."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()
    prepare(scene)
    publish(scene, 1, 2, 3)

    with pytest.raises(RefusedError):
        scene.space.apply(stage="cutover")
    plan, result = scene.space.apply(stage="cutover", allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    assert [d.code for d in plan.diagnostics if d.code in ("JS496", "JS497")] == ["JS497"]
    scene.require_relocated()


def test_a_plain_apply_finishes_it_too(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Without a stage everything that is left is done."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    prepare(scene)

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()


def test_a_cutover_does_not_begin_to_copy(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Without a prepared copy it is an error: the window would be spent on copying."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()

    plan = scene.space.plan(stage="cutover")

    found = [d for d in plan.diagnostics if d.severity == "error"]
    assert [d.code for d in found] == ["JS495"]
    assert "Prepare it first: jsplan apply --stage prepare." in found[0].detail
    assert plan.steps == []


def test_a_stage_changes_nothing_else(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Other changes of the files wait, in both stages."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    scene.space.write(
        streams=[
            {"name": "OTHER", "domain": "hub", "subjects": ["other"]},
            BODY | {"domain": "hub"},
        ],
        relocate=[{"from": scene.origin, "to": scene.target}],
    )

    prepare(scene)
    scene.space.apply(stage="cutover", allow_hazards=PERMITTED)

    with scene.raw("hub") as raw:
        assert streams(raw) == ["A"]
    assert {s.op for s in scene.space.plan().steps} == {"stream.create"}


def test_status_shows_what_is_prepared(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """It names both sides, the lag and the newest message, and nothing is said to be wrong."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    prepare(scene)

    report = status(scene.space.load, RecordingObserver())

    assert report.interrupted == []
    assert [(r["from"], r["to"], r["phase"], r["lag"]) for r in report.relocations] == [
        ("leaf/stream/A", "hub/stream/A", "prepared", 0)
    ]
    assert report.relocations[0]["prepared"] is not None
    assert report.relocations[0]["last_message"] is not None
    text = render_text(report, None).plain()
    assert "Relocations" in text
    assert "prepared" in text


def test_a_change_of_the_origin_meanwhile_survives_a_failure(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The restored origin is that of the day of the cut-over, and drift shows the change."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    prepare(scene)
    changed = config_of(scene, "leaf", "A") | {"max_age": 7_200_000_000_000}
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.UPDATE.A", changed)
    report = drift(scene.space.load, DriftOptions(), RecordingObserver())
    assert [c.address for c in report.resource_drift] == ["leaf/stream/A"]
    with scene.raw("hub") as raw:  # the copy lacks a message that the origin has
        raw.delete("A", 59)

    _, result = scene.space.apply(stage="cutover", allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert len(failed) == 1
    assert failed[0].endswith("the origin has its subjects back, and nothing of it is lost")
    restored = config_of(scene, "leaf", "A")
    assert (restored["subjects"], restored["max_age"]) == (["A.>"], 7_200_000_000_000)


def test_an_interrupted_cutover_needs_no_permission_again(
    tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The permissions of the cut-over are recorded, although the preparation allowed nothing."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB)
    scene.reset()
    prepare(scene)
    die_before_phase(scene, "copied")

    report = status(scene.space.load, RecordingObserver())
    assert [r["phase"] for r in report.relocations] == ["cut-over"]
    _, result = scene.space.apply(stage="cutover")

    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()
