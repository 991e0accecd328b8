"""A stream moves to another domain, or gets another name, with all that it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.relocate.scene import PERMITTED, RENAMED, TO_HUB, TO_LEAF, Route, Scene

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

ROUTES = pytest.mark.parametrize(
    "route", [TO_HUB, TO_LEAF, RENAMED], ids=["to_hub", "to_leaf", "renamed"]
)


@pytest.mark.matrix
@ROUTES
def test_a_stream_keeps_messages_and_positions(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Messages with sequences and times, and the positions of consumers, are at the new address."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()

    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [step.error for step in result.steps if step.error] == []
    assert {h.code for c in plan.resource_changes for h in c.hazards} == {"REMOVES_SUBJECTS"}
    scene.require_relocated()


#: When a consumer is resumed.
FAR = "2190-01-01T00:00:00Z"


@ROUTES
def test_a_pause_by_another_client_comes_along(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """A consumer that another client paused delivers nothing at the new address either."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()
    with scene.raw(route[0]) as raw:
        for name in ("C", "N"):
            raw.api_ok(f"$JS.API.CONSUMER.PAUSE.A.{name}", {"pause_until": FAR})
        raw.api_ok("$JS.API.CONSUMER.PAUSE.A.N", {})

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [step.error for step in result.steps if step.error] == []
    with scene.raw(route[1]) as raw:
        paused = {
            name: raw.api_ok(f"$JS.API.CONSUMER.INFO.{route[2]}.{name}").get("paused")
            for name in ("C", "N")
        }
    assert paused == {"C": True, "N": None}
    assert not scene.space.plan().has_changes
