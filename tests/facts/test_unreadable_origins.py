"""Origins that a new copy consumes and that do not answer: the plan says so, with what files and state know of them."""

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
    """Files with a copy in the hub of the leaf's Q."""
    return space.write(
        streams=[
            *others,
            {"name": "COPY", "domain": "hub", "mirror": {"name": "Q", "domain": "leaf"}},
        ],
        **more,
    )


def copy_hazards(plan: Plan) -> list[Hazard]:
    """The hazards of the copy."""
    return [
        hazard
        for change in plan.resource_changes
        if change.address == "hub/stream/COPY"
        for hazard in change.hazards
    ]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_an_origin_that_is_known_to_be_consumed(
    space: Space, clean_hub_leaf: Sandbox, retention: str
) -> None:
    """State knows that it is a work queue, so the copy has the hazard although the number is not known."""
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


def test_an_origin_that_keeps_what_is_copied(space: Space, clean_hub_leaf: Sandbox) -> None:
    """A stream with limits loses nothing to a copy, wherever it is: there is nothing to say."""
    origin = QUEUE | {"retention": "limits"}
    space.write(streams=[origin]).apply()
    clean_hub_leaf["leaf"].stop()

    plan = write_copy(space, origin).plan()

    assert copy_hazards(plan) == []
    assert [d.code for d in plan.diagnostics if d.code == "JS448"] == []


def test_an_unknown_origin(space: Space, clean_hub_leaf: Sandbox) -> None:
    """Neither files nor state have it: a warning names it and says what it may mean; the apply may go on."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.api_ok("$JS.leaf.API.STREAM.CREATE.Q", {"name": "Q", "retention": "workqueue"})
    clean_hub_leaf["leaf"].stop()

    plan = write_copy(space).plan()

    (found,) = [d for d in plan.diagnostics if d.code == "JS448"]
    assert (found.severity, found.address) == ("warning", "hub/stream/COPY")
    assert (
        "its origin leaf/stream/Q cannot be read. If it is a work queue or an interest stream"
        in found.summary
    )
    assert "domain leaf does not answer" in found.detail
    assert copy_hazards(plan) == []
    assert plan.applyable


def test_what_is_counted_and_what_is_not_are_one_hazard(
    space: Space, clean_hub_leaf: Sandbox
) -> None:
    """A stream that collects one queue that answers and one that does not has one hazard: at least 0, at most nobody knows."""
    hub = clean_hub_leaf["hub"]
    near = {"name": "NEAR", "domain": "hub", "subjects": ["n"], "retention": "workqueue"}
    space.write(streams=[near, QUEUE]).apply()
    with Raw(hub.url, hub.user, hub.password) as raw:
        raw.request("n", b"x")
    clean_hub_leaf["leaf"].stop()

    collects = {
        "name": "COPY",
        "domain": "hub",
        "sources": [{"name": "NEAR"}, {"name": "Q", "domain": "leaf"}],
    }
    (hazard,) = copy_hazards(space.write(streams=[near, QUEUE, collects]).plan())

    assert (hazard.messages, hazard.exact, hazard.at_least, hazard.at_most) == (
        None,
        False,
        0,
        None,
    )
    assert "up to 1 of 1 message" in hazard.message
    assert "leaf/stream/Q; their number is unknown" in hazard.message
