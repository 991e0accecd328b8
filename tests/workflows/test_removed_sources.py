"""A source is removed once all of its origin is copied, or with permission."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError, StalePlanError
from tests.support.fleets import Fleet, fleet_space, sales_streams

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from tests.support.workspaces import Space


def small_streams() -> list[dict[str, Any]]:
    """The streams of the fleet, with place for three messages in the hub."""
    shops, hub = sales_streams()
    return [shops, hub | {"max_msgs": 3, "discard": "new"}]


def without(space: Space, store: str, streams: list[dict[str, Any]] | None = None) -> Space:
    """Write the workspace without one store, whose streams stay on its server."""
    space.base["domains"] = {
        name: domain for name, domain in space.base["domains"].items() if name != store
    }
    return space.write(
        streams=streams or sales_streams(),
        removed=[{"address": f"{store}/**", "destroy": False}],
    )


def replication_hazards(plan: Plan) -> list[Hazard]:
    return [h for c in plan.resource_changes for h in c.hazards if h.code == "BREAKS_REPLICATION"]


def test_all_is_copied(fleet: Fleet, tmp_path: Path) -> None:
    """A source with all messages of its origin is removed without a hazard."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=sales_streams()).apply()
    fleet.publish(store, f"sales.{store}.x", 5)
    fleet.wait("hub", "ALL_SALES", 5)
    plan, result = without(space, store).apply()

    assert (result.exit_code, replication_hazards(plan)) == (0, [])
    assert len(fleet.ask("STREAM.INFO.ALL_SALES")["config"]["sources"]) == len(fleet.stores) - 1
    assert fleet.messages(store, "SALES") == 5


def test_not_all_is_copied(fleet: Fleet, tmp_path: Path) -> None:
    """Messages that are not copied yet are a blocking hazard with their number."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=small_streams()).apply()
    fleet.publish(store, f"sales.{store}.x", 8)
    fleet.wait("hub", "ALL_SALES", 3)
    plan = without(space, store, small_streams()).plan()

    assert [(h.messages, h.blocking, h.allowed) for h in replication_hazards(plan)] == [
        (5, True, False)
    ]
    assert (
        "5 messages of source SALES@$JS.store-001.API are not copied yet, and will not be"
        in replication_hazards(plan)[0].message
    )
    with pytest.raises(RefusedError, match="are not copied yet"):
        space.apply()
    assert space.apply(allow_hazards=("BREAKS_REPLICATION:hub/stream/ALL_SALES",))[1].exit_code == 0


def test_the_origin_is_offline(fleet: Fleet, tmp_path: Path) -> None:
    """A source whose origin is offline is a blocking hazard without a number."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=sales_streams()).apply()
    fleet.sandbox[store].stop()
    plan = without(space, store).plan()
    fleet.sandbox.start()

    assert [(h.messages, h.exact, h.blocking) for h in replication_hazards(plan)] == [
        (None, False, True)
    ]
    assert "is not known" in replication_hazards(plan)[0].message


def test_messages_are_left_when_applied(fleet: Fleet, tmp_path: Path) -> None:
    """A saved plan is stale if the source has messages left when it is applied."""
    space, store = fleet_space(tmp_path, fleet), fleet.stores[0]
    space.write(streams=small_streams()).apply()
    fleet.publish(store, f"sales.{store}.x", 3)
    fleet.wait("hub", "ALL_SALES", 3)
    plan = without(space, store, small_streams()).plan()
    fleet.publish(store, f"sales.{store}.x", 5)

    with pytest.raises(
        StalePlanError, match="would lose 5 messages of source SALES that are not copied yet"
    ):
        space.apply_saved(plan)
    assert len(fleet.ask("STREAM.INFO.ALL_SALES")["config"]["sources"]) == len(fleet.stores)
