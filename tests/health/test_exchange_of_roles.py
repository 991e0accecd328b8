"""A mirror and its origin exchange their roles while the link between them is cut."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from tests.health.conftest import LinkedServers
    from tests.support.workspaces import Space

ORIGIN, COPY = "hub/stream/ORDERS", "leaf/stream/COPY"


def exchange(linked_servers: LinkedServers, folder: Path, deleted: tuple[int, ...] = ()) -> Space:
    """Create an origin of 20 messages and its mirror, and write the files that exchange them."""
    space = linked_servers.space(folder)
    del space.base["domains"]["other"], space.base["imports"]
    space.write(
        streams=[
            {"name": "ORDERS", "subjects": ["ORDERS.>"]},
            {"name": "COPY", "domain": "leaf", "mirror": {"name": "ORDERS", "domain": "hub"}},
        ]
    )
    space.apply()
    linked_servers.publish("hub", "ORDERS.a", 20)
    linked_servers.wait_until_copied("leaf", "COPY", 20)
    for seq in deleted:
        linked_servers.request("hub", "STREAM.MSG.DELETE.ORDERS", {"seq": seq})
    mirror: dict[str, Any] = {"name": "ORDERS", "mirror": {"name": "COPY", "domain": "leaf"}}
    return space.write(
        streams=[
            mirror | {"lifecycle": {"on_replace": "recreate"}},
            {"name": "COPY", "domain": "leaf", "subjects": ["ORDERS.>"]},
        ]
    )


def hazards(plan: Plan) -> dict[tuple[str, str], Hazard]:
    """Return the hazards by address and code."""
    return {(c.address, h.code): h for c in plan.resource_changes for h in c.hazards}


@pytest.mark.matrix
@pytest.mark.since_2_12
def test_a_mirror_that_is_behind(linked_servers: LinkedServers, tmp_path: Path) -> None:
    """The plan says how many messages only the origin has, once its mirror has stopped."""
    space = exchange(linked_servers, tmp_path, deleted=(3, 5))
    linked_servers.relay.cut()
    linked_servers.publish("hub", "ORDERS.a", 8)
    linked_servers.request("hub", "STREAM.MSG.DELETE.ORDERS", {"seq": 22})

    found = hazards(space.plan())

    assert found.keys() == {(ORIGIN, "DELETES_STREAM"), (COPY, "BREAKS_REPLICATION")}
    lost = found[COPY, "BREAKS_REPLICATION"]
    assert (lost.messages, lost.exact) == (7, True), lost
    assert lost.message == f"7 messages are only in {ORIGIN}, whose messages this plan deletes"


@pytest.mark.matrix
@pytest.mark.since_2_12
def test_a_mirror_that_falls_behind_after_the_plan(
    linked_servers: LinkedServers, tmp_path: Path
) -> None:
    """A saved plan of a complete mirror is refused, with nothing written, once it lags."""
    space = exchange(linked_servers, tmp_path)
    plan = space.plan()
    assert hazards(plan).keys() == {(ORIGIN, "DELETES_STREAM")}
    linked_servers.relay.cut()
    linked_servers.publish("hub", "ORDERS.a", 2)

    with pytest.raises(JsplanError, match="would lose 2 messages of mirror ORDERS"):
        space.apply_saved(plan, allow_hazards=("DELETES_STREAM",))
    assert linked_servers.state("hub", "ORDERS")["messages"] == 22
    assert (
        linked_servers.request("leaf", "STREAM.INFO.COPY")["config"]["mirror"]["name"] == "ORDERS"
    )
