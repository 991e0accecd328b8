"""Origins that a new mirror or source consumes and that are offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.documents.plan import Hazard, Plan
    from jsplan.sandbox import Sandbox

QUEUE = {"name": "Q", "domain": "leaf", "subjects": ["q"], "retention": "workqueue"}


@pytest.fixture
def space(clean_hub_leaf: Sandbox, tmp_path: Path) -> Space:
    """A workspace with hub and leaf."""
    return hub_leaf_space(tmp_path, clean_hub_leaf)


def write_copy(space: Space, *others: dict[str, Any], **more: Any) -> Space:
    """Write a mirror in the hub of Q in the leaf."""
    return space.write(
        streams=[
            *others,
            {"name": "COPY", "domain": "hub", "mirror": {"name": "Q", "domain": "leaf"}},
        ],
        **more,
    )


def copy_hazards(plan: Plan) -> list[Hazard]:
    """Return the hazards of the mirror."""
    return [
        hazard
        for change in plan.resource_changes
        if change.address == "hub/stream/COPY"
        for hazard in change.hazards
    ]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_an_offline_origin_that_is_consumed(
    space: Space, clean_hub_leaf: Sandbox, retention: str
) -> None:
    """An offline origin that is a work queue in state gives the hazard without a count."""
    origin = QUEUE | {"retention": retention}
    space.write(streams=[origin]).apply()
    clean_hub_leaf["leaf"].stop()

    plan = write_copy(space, origin).plan(safe_below=1000)

    (hazard,) = copy_hazards(plan)
    assert (hazard.code, hazard.messages, hazard.exact, hazard.at_least, hazard.causes) == (
        "DELETES_MESSAGES",
        None,
        False,
        0,
        ["origin"],
    )
    assert hazard.message.startswith(
        "copying removes messages from its origin leaf/stream/Q; their number is unknown (domain leaf does not answer"
    )
    assert hazard.blocking
    assert not hazard.allowed


def test_an_offline_origin_with_limits(space: Space, clean_hub_leaf: Sandbox) -> None:
    """An offline origin with limits retention gives no hazard and no warning."""
    origin = QUEUE | {"retention": "limits"}
    space.write(streams=[origin]).apply()
    clean_hub_leaf["leaf"].stop()

    plan = write_copy(space, origin).plan()

    assert copy_hazards(plan) == []
    assert [d.code for d in plan.diagnostics if d.code == "JS448"] == []


def test_an_unknown_origin(space: Space, clean_hub_leaf: Sandbox) -> None:
    """An offline origin in neither files nor state gives a warning, and apply is possible."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.create("Q", "leaf", retention="workqueue")
    clean_hub_leaf["leaf"].stop()

    plan = write_copy(space).plan()

    (finding,) = [d for d in plan.diagnostics if d.code == "JS448"]
    assert (finding.severity, finding.address) == ("warning", "hub/stream/COPY")
    assert (
        "its origin leaf/stream/Q cannot be read. If it is a work queue or an interest stream"
        in finding.summary
    )
    assert "domain leaf does not answer" in finding.detail
    assert copy_hazards(plan) == []
    assert plan.applyable


def test_counted_and_unknown_origins_are_one_hazard(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A stream with a readable and an offline queue as sources has one hazard."""
    hub = clean_hub_leaf["hub"]
    readable = {"name": "NEAR", "domain": "hub", "subjects": ["n"], "retention": "workqueue"}
    space.write(streams=[readable, QUEUE]).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.request("n", b"x")
    clean_hub_leaf["leaf"].stop()

    collecting = {
        "name": "COPY",
        "domain": "hub",
        "sources": [{"name": "NEAR"}, {"name": "Q", "domain": "leaf"}],
    }
    (hazard,) = copy_hazards(space.write(streams=[readable, QUEUE, collecting]).plan())

    assert (hazard.messages, hazard.exact, hazard.at_least, hazard.at_most) == (
        None,
        False,
        0,
        None,
    )
    assert "up to 1 of 1 message" in hazard.message
    assert "leaf/stream/Q; their number is unknown" in hazard.message
