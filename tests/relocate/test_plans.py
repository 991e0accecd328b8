"""The plan of a relocation: what it announces, what it refuses, what waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError, StalePlanError
from tests.relocate.scene import BODY, PERMITTED, RENAMED, TO_HUB, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.raw import NoResponders, streams
from tests.support.state import read_state
from tests.support.workspaces import left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.conftest import MakeHubLeaf


@pytest.fixture
def scene(tmp_path: Path, clean_hub_leaf: Sandbox) -> Scene:
    """A stream of the leaf that moves to the hub."""
    made = Scene(tmp_path, clean_hub_leaf, TO_HUB, count=20)
    made.reset()
    return made


def hazards(plan: Plan) -> dict[tuple[str, str], str]:
    """Return the message of each hazard, by address and code."""
    return {(c.address, h.code): h.message for c in plan.resource_changes for h in c.hazards}


def require_refused(scene: Scene, *parts: str) -> None:
    """Check that the plan has one error with these parts, no step, and leaves the origin alone."""
    plan = scene.space.plan()
    found = [d for d in plan.diagnostics if d.severity == "error"]
    assert [d.code for d in found] == ["JS495"]
    for part in parts:
        assert part in f"{found[0].summary} {found[0].detail}"
    assert plan.steps == []
    assert plan.errored
    assert plan.summary["destroy"] == 0


def test_the_plan_names_each_step_and_both_sides(scene: Scene) -> None:
    """Steps come in the order of the contract, and both sides name each other."""
    plan = scene.space.plan()

    assert [step.op for step in plan.steps if step.op != "state.forget"] == [
        "transfer.mirror",
        "transfer.compare",
        "transfer.quiesce",
        "transfer.promote",
        "transfer.compare",
        "transfer.activate",
        "transfer.consumer",
        "transfer.consumer",
        "transfer.consumer",
        "transfer.compare",
        "transfer.delete",
    ]
    changes = {c.address: c for c in plan.resource_changes}
    assert changes["hub/stream/A"].relocated_from == "leaf/stream/A"
    assert changes["leaf/stream/A"].relocated_to == "hub/stream/A"
    assert changes["hub/consumer/A/C"].relocated_from == "leaf/consumer/A/C"
    assert changes["leaf/consumer/A/C"].relocated_to == "hub/consumer/A/C"
    assert changes["hub/stream/A"].change.actions == ["create"]
    assert changes["leaf/stream/A"].change.actions == ["delete"]
    found = hazards(plan)
    assert list(found) == [("hub/stream/A", "REMOVES_SUBJECTS")]
    assert [d.code for d in plan.diagnostics if d.code.startswith("JS2")] == []
    assert "publishers to A.>" in found["hub/stream/A", "REMOVES_SUBJECTS"]
    with pytest.raises(RefusedError):
        scene.space.apply()
    with scene.raw("leaf") as raw:
        assert stream_content.messages(raw, "A") == scene.expected


def test_a_saved_plan_is_applied_once(scene: Scene) -> None:
    """A saved plan relocates without questions, and is stale afterwards."""
    plan = scene.space.plan(allow_hazards=PERMITTED)

    result = scene.space.apply_saved(plan)

    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()
    with pytest.raises(StalePlanError):
        scene.space.apply_saved(plan)


def test_a_rehearsal_runs_every_step(scene: Scene) -> None:
    """On embedded servers of the same shape no step is refused."""
    plan = scene.space.plan(allow_hazards=PERMITTED, rehearse=True)

    assert plan.rehearsal is not None
    assert (plan.rehearsal.refused, plan.rehearsal.not_tried) == (0, 0)
    assert not plan.errored


@pytest.mark.parametrize("phase", ["copied", "activated"])
def test_an_interrupted_relocation_is_not_destroyed(phase: str, scene: Scene) -> None:
    """`destroy` asks to finish the relocation first; refreshing state changes nothing of it."""
    die_before_phase(scene, phase)

    plan = scene.space.plan(destroy=True)
    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS496"]
    assert plan.steps == []
    scene.space.apply(refresh_only=True)

    _, result = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()


def test_a_plan_to_destroy_deletes_the_origin(scene: Scene) -> None:
    """`destroy` moves nothing first, and says that messages are deleted."""
    plan = scene.space.plan(destroy=True)

    assert ("leaf/stream/A", "DELETES_STREAM") in hazards(plan)
    assert {step.op for step in plan.steps} == {"stream.delete", "state.forget"}


def test_done_is_done(scene: Scene) -> None:
    """With the entry left in the files nothing happens again, also to a new stream of that name."""
    scene.space.apply(allow_hazards=PERMITTED)
    scene.require_relocated()
    with scene.raw("leaf") as raw:
        raw.create("A", subjects=["other"])

    plan = scene.space.plan()

    assert (plan.steps, plan.errored) == ([], False)


def test_a_new_workspace_creates_the_target(scene: Scene) -> None:
    """In an environment that never had the origin the target is created empty."""
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
    (scene.space.folder / "state" / "test.json").unlink()

    plan, result = scene.space.apply()

    assert result.exit_code == 0
    assert "stream.create" in {step.op for step in plan.steps}
    assert left_to_do(scene.space.plan()) == []


def test_consumers_that_stay_behind_are_announced(scene: Scene) -> None:
    """Undeclared and unmanaged consumers of the origin are deleted with it, and counted."""
    with scene.raw("leaf") as raw:
        raw.consumer("A", "OTHERS")
    scene.declare_after(consumers=BODY["consumers"][:1])

    found = hazards(scene.space.plan())

    text = found["leaf/stream/A", "DELETES_CONSUMER"]
    assert text.startswith("N, NEW, OTHERS: not declared under hub/stream/A")
    assert "messages are not processed yet" in text


def test_redelivery_is_counted(scene: Scene) -> None:
    """Messages that workers have now may be delivered again at the new address."""
    with scene.raw("leaf") as raw:
        raw.pull("A", "C", 3)

    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 0
    text = hazards(plan)["hub/stream/A", "DUPLICATES_MESSAGES"]
    assert "up to 3 messages of C may be delivered again: 3 that workers have now" in text


def test_lower_limits_are_counted(scene: Scene) -> None:
    """Messages that the limits of the target delete are a hazard with their number."""
    scene.declare_after(max_msgs=5)

    plan = scene.space.plan()
    assert hazards(plan)["hub/stream/A", "DELETES_MESSAGES"].startswith(
        "the server deletes 13 of 18 messages"
    )

    _, result = scene.space.apply(allow_hazards=(*PERMITTED, "DELETES_MESSAGES"))
    assert result.exit_code == 0
    with scene.raw("hub") as raw:
        assert stream_content.messages(raw, "A") == scene.expected[-5:]


def test_a_stream_that_copies_the_origin_is_announced(scene: Scene) -> None:
    """An unmanaged mirror loses its origin: that is BREAKS_REPLICATION, and its name."""
    with scene.raw("hub") as raw:
        mirror = {"name": "M", "mirror": {"name": "A", "external": {"api": "$JS.leaf.API"}}}
        raw.api_ok("$JS.API.STREAM.CREATE.M", mirror)

    found = hazards(scene.space.plan())

    assert "hub/stream/M" in found["leaf/stream/A", "BREAKS_REPLICATION"]


def test_an_existing_target_is_refused(scene: Scene) -> None:
    """A stream at the new address is never overwritten."""
    with scene.raw("hub") as raw:
        raw.create("A", subjects=["A.>"])

    require_refused(scene, "hub/stream/A exists already", "backfill")


def test_an_unmanaged_origin_is_refused(scene: Scene) -> None:
    """A stream that this workspace does not manage is neither moved nor left behind in silence."""
    (scene.space.folder / "state" / "test.json").unlink()

    require_refused(scene, "it is not managed by this workspace", "jsplan import leaf/stream/A")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"retention": "workqueue"}, "limits retention, and hub/stream/A workqueue"),
        ({"sealed": True}, "only one side is sealed"),
        ({"allow_msg_counter": True}, "only one side has allow_msg_counter"),
        ({"allow_msg_schedules": True}, "has schedules, and its server"),
        ({"first_seq": 5}, "first_seq is declared"),
        ({"subjects": None, "sources": [{"name": "X"}]}, "has no source X"),
    ],
    ids=["workqueue", "sealed", "counter", "schedules", "first_seq", "sources"],
)
def test_what_cannot_move_is_refused(fields: dict[str, Any], text: str, scene: Scene) -> None:
    """The plan says why and what to do instead; the origin is not deleted."""
    consumers = [] if fields.get("retention") else BODY["consumers"]
    scene.declare_after(consumers=consumers, **fields)

    require_refused(scene, text)


def test_a_target_selects_both_sides(scene: Scene) -> None:
    """With one side as --target both move; with one side excluded neither does."""
    for glob in ("hub/stream/A", "leaf/stream/A", "hub/consumer/A/C"):
        assert len(scene.space.plan(targets=(glob,)).steps) == 14
        assert left_to_do(scene.space.plan(excludes=(glob,))) == []


def test_the_prevent_destroy_of_the_origin_holds(scene: Scene) -> None:
    """A guard in state is not lifted by moving the stream."""
    scene.space.write(
        streams=[BODY | {"domain": "leaf", "lifecycle": {"prevent_destroy": True}}]
    ).apply()
    scene.declare_after()

    assert [d.code for d in scene.space.plan().diagnostics if d.severity == "error"] == ["JS301"]


def test_a_glob_moves_a_whole_domain(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """`leaf/**` to `hub/**` moves each stream that is declared there now."""
    scene = Scene(tmp_path, clean_hub_leaf, TO_HUB, count=20)
    bodies = [{"name": name, "subjects": [f"{name}.>"]} for name in ("A", "B", "C")]
    scene.space.write(streams=[body | {"domain": "leaf"} for body in bodies]).apply()
    contents = {}
    with scene.raw("leaf") as raw:
        for body in bodies:
            stream_content.fill(raw, str(body["name"]), 20)
            contents[str(body["name"])] = stream_content.messages(raw, str(body["name"]))
    scene.space.write(
        streams=[body | {"domain": "hub"} for body in bodies],
        relocate=[{"from": "leaf/**", "to": "hub/**"}],
    )

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    with scene.raw("hub") as raw:
        assert {name: stream_content.messages(raw, name) for name in streams(raw)} == contents
    with scene.raw("leaf") as raw:
        assert streams(raw) == []
    assert left_to_do(scene.space.plan()) == []
    assert read_state(scene.space.folder).replacements == {}


def test_two_streams_for_one_target_are_refused(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Globs that lead two streams to one address move neither."""
    scene = Scene(tmp_path, clean_hub_leaf, RENAMED, count=5)
    bodies = [{"name": name, "subjects": [f"{name}.>"], "domain": "leaf"} for name in ("A1", "A2")]
    scene.space.write(streams=bodies).apply()
    scene.space.write(
        streams=[{"name": "A", "subjects": ["A.>"], "domain": "leaf"}],
        relocate=[{"from": "leaf/stream/A1", "to": "leaf/stream/A"}],
    )
    assert not scene.space.plan().errored
    scene.space.write(
        streams=[{"name": "A", "subjects": ["A.>"], "domain": "leaf"}],
        relocate=[
            {"from": "leaf/stream/A1", "to": "leaf/stream/A"},
            {"from": "leaf/*/A2", "to": "leaf/*/A"},
        ],
    )

    plan = scene.space.plan()

    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS495"]
    assert plan.steps == []


def test_a_removed_entry_for_the_origin_is_refused(scene: Scene) -> None:
    """The origin is either left on the server or moved."""
    scene.space.write(
        streams=[BODY | {"domain": "hub"}],
        relocate=[{"from": "leaf/stream/A", "to": "hub/stream/A"}],
        removed=[{"address": "leaf/stream/A", "destroy": False}],
    )

    require_refused(scene, "a `removed` entry leaves it on the server")


def test_an_offline_side_defers_both(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """While the leaf is offline no empty stream is created in the hub, and nothing is deleted."""
    sandbox = make_hub_leaf()
    scene = Scene(tmp_path, sandbox, TO_HUB, count=20)
    scene.reset()
    sandbox["leaf"].stop()

    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert (plan.steps, result.exit_code) == ([], 0)
    assert {"hub/stream/A", "leaf/stream/A"} <= {d.address for d in plan.deferred}
    with scene.raw("hub") as raw:
        assert streams(raw) == []
    sandbox["leaf"].start()
    sandbox["hub"].wait_until(lambda: _is_back(scene), "be linked again", 60)
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()


def _is_back(scene: Scene) -> bool:
    with scene.raw("hub") as raw:
        try:
            return "streams" in raw.api("$JS.leaf.API.INFO")
        except (NoResponders, TimeoutError):
            return False


def test_deletions_during_the_copy_are_repeated(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A deletion in the origin while a mirror follows is repeated in the target."""
    scene = Scene(tmp_path, clean_hub_leaf, RENAMED, count=40)
    scene.reset()
    die_before_phase(scene, "quiesced")
    with scene.raw("leaf") as raw:
        raw.delete("A", 25)
        raw.api_ok("$JS.API.STREAM.PURGE.A", {"seq": 12})
        scene.expected = stream_content.messages(raw, "A")
        scene.unread = stream_content.unread(raw, "A")

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    scene.require_relocated()
