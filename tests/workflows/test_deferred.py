"""`apply PLANFILE --deferred` runs the steps that were deferred for offline domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import StalePlanError, UsageError
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from jsplan.workflows import plan as planning
from tests.support.fleets import Fleet, fleet_space, sales_streams
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult


def save_plan(space: Space) -> Path:
    """Save a plan of the workspace."""
    path = space.folder / "approved.plan"
    planning.save_plan(space.plan(), path)
    return path


def apply_deferred(
    space: Space, path: Path, observer: RecordingObserver | None = None, **options: Any
) -> ApplyResult:
    """Apply the deferred steps of a saved plan."""
    return applying.apply_saved(
        space.load, path, PlanOptions(deferred=True, **options), observer or RecordingObserver()
    )[1]


def test_deferred_steps_are_applied_later(fleet: Fleet, tmp_path: Path) -> None:
    """Steps of a domain that was offline are applied later, after other applies, and once."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=sales_streams(), kv=[{"bucket": "CONFIG", "domain": "label:edge"}])
    path = save_plan(space)
    fleet.sandbox[store].stop()
    first = applying.apply_saved(space.load, path, PlanOptions(), RecordingObserver())[1]
    more = {"name": "MORE", "domain": "hub"}
    other = space.write(
        streams=[*sales_streams(), more], kv=[{"bucket": "CONFIG", "domain": "label:edge"}]
    ).apply()[1]
    fleet.sandbox.start()
    second = apply_deferred(space, path)

    assert (first.exit_code, other.exit_code) == (6, 0)
    assert {s.address for s in first.steps if s.status != "done"} == {
        f"{store}/kv/CONFIG",
        f"{store}/stream/SALES",
    }
    assert (second.exit_code, {s.address: s.status for s in second.steps}) == (
        0,
        {f"{store}/kv/CONFIG": "done", f"{store}/stream/SALES": "done"},
    )
    assert second.summary["added"] == 2
    assert not space.plan().has_changes
    with pytest.raises(StalePlanError, match=r"nothing of .* is deferred"):
        apply_deferred(space, path)


def test_still_offline(fleet: Fleet, tmp_path: Path) -> None:
    """Steps of a domain that is still offline stay deferred."""
    space, stores = fleet_space(tmp_path, fleet), fleet.stores[:2]
    path = save_plan(space.write(streams=sales_streams()))
    for store in stores:
        fleet.sandbox[store].stop()
    applying.apply_saved(space.load, path, PlanOptions(), RecordingObserver())
    fleet.sandbox[stores[0]].start()
    fleet.sandbox.wait_ready()
    first = apply_deferred(space, path)
    fleet.sandbox.start()
    second = apply_deferred(space, path)

    assert (first.exit_code, {s.address: s.status for s in first.steps}) == (
        6,
        {f"{stores[0]}/stream/SALES": "done", f"{stores[1]}/stream/SALES": "skipped"},
    )
    assert (second.exit_code, [s.address for s in second.steps]) == (
        0,
        [f"{stores[1]}/stream/SALES"],
    )


def test_changed_outside_meanwhile(fleet: Fleet, tmp_path: Path) -> None:
    """A deferred step whose resource has changed is stale, and nothing is written."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    path = save_plan(space.write(streams=sales_streams()))
    fleet.sandbox[store].stop()
    applying.apply_saved(space.load, path, PlanOptions(), RecordingObserver())
    fleet.sandbox.start()
    fleet.ask("STREAM.CREATE.SALES", store, {"name": "SALES", "subjects": ["theirs"]})

    with pytest.raises(StalePlanError, match=f"no longer as planned: {store}/stream/SALES"):
        apply_deferred(space, path)
    assert fleet.ask("STREAM.INFO.SALES", store)["config"]["subjects"] == ["theirs"]


def test_offline_already_when_planned(fleet: Fleet, tmp_path: Path) -> None:
    """A domain that was offline when planned has no deferred steps, and needs a new plan."""
    space, store, other = fleet_space(tmp_path, fleet), *fleet.stores[:2]
    fleet.sandbox[store].stop()
    path = save_plan(space.write(streams=sales_streams()))
    fleet.sandbox[other].stop()
    applying.apply_saved(space.load, path, PlanOptions(), RecordingObserver())
    fleet.sandbox.start()
    observer = RecordingObserver()
    result = apply_deferred(space, path, observer)

    assert [s.address for s in result.steps] == [f"{other}/stream/SALES"]
    assert (
        "1 resource in 1 domain were offline already when this was planned, so it has no steps for them: they need a new plan"
        in observer.texts
    )
    assert fleet.messages(store, "SALES") == -1
    assert [c.address for c in space.plan().resource_changes if c.change.actions == ["create"]] == [
        f"{store}/stream/SALES"
    ]


def test_not_applied_yet(fleet: Fleet, tmp_path: Path) -> None:
    """`--deferred` with a plan that was never applied is wrong usage."""
    space = fleet_space(tmp_path, fleet)
    path = save_plan(space.write(streams=sales_streams()))

    with pytest.raises(UsageError, match="was not applied yet"):
        apply_deferred(space, path)
    assert (
        applying.apply_saved(space.load, path, PlanOptions(), RecordingObserver())[1].exit_code == 0
    )
    with pytest.raises(StalePlanError):
        apply_deferred(space, path)
