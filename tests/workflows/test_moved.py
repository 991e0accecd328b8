"""A `moved` entry changes the name of a domain in jsplan, and nothing on a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import ConfigError, JsplanError, PlanError
from jsplan.units import SECOND
from jsplan.workflows import state as remembering
from jsplan.workflows.validate import validate
from tests.support.raw import Raw, streams
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

HUB = {"connection": "hub"}


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace with one stream in the leaf."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.write(streams=[{"name": "A", "domain": "leaf"}]).apply()
    return space


@pytest.mark.parametrize(
    ("origin", "to"), [("leaf/stream/A", "leaf/stream/B"), ("leaf/stream/A*", "hub/stream/B*")]
)
def test_another_name(space: Space, origin: str, to: str) -> None:
    """Moving a stream to another name is an error in validate and in `state mv`."""
    moved = [{"from": origin, "to": to}]
    space.write(streams=[{"name": "B", "domain": to.split("/", maxsplit=1)[0]}], moved=moved)
    with pytest.raises(ConfigError) as caught:
        validate(space.load)
    [found] = caught.value.diagnostics
    assert found.code == "JS147"
    assert found.range is not None
    assert "`relocate:` in place of `moved:`" in found.detail

    space.write(streams=[{"name": "A", "domain": "leaf"}])
    with pytest.raises(JsplanError, match="only the domain can change") as refused:
        remembering.mv(space.load, origin, to, SECOND)
    assert refused.value.hint == found.detail


def test_another_server(space: Space, clean_hub_leaf: Sandbox) -> None:
    """Moving a stream to another domain on another server is an error."""
    space.write(
        streams=[{"name": "A", "domain": "hub"}],
        moved=[{"from": "leaf/stream/A", "to": "hub/stream/A"}],
    )
    plan = space.plan()
    [found] = [d for d in plan.diagnostics if d.code == "JS427"]

    assert (found.address, plan.errored, plan.steps) == ("hub/stream/A", True, [])
    assert (found.range is not None, plan.resource_drift) == (True, [])
    with pytest.raises(PlanError):
        space.apply()
    with Raw(clean_hub_leaf["hub"].url, "acc", "acc") as raw:
        assert streams(raw) == []


def test_an_old_name_for_another_domain(space: Space) -> None:
    """The old name of a domain may be given to another domain in the same change."""
    space.base["domains"] = {
        "edge": HUB | {"js_domain": "leaf"},
        "leaf": HUB | {"js_domain": "hub"},
    }
    plan, result = space.write(
        streams=[{"name": "A", "domain": "edge"}], moved=[{"from": "leaf/**", "to": "edge/**"}]
    ).apply()

    assert (plan.diagnostics, result.exit_code, remembering.list_(space.load, ())) == (
        [],
        0,
        ["edge/stream/A"],
    )
