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
