"""A domain that never answered is a warning with the names of existing domains."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.views import drift_view, plan_view
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from jsplan.workflows.status import status
from tests.support.workspaces import RecordingObserver, Space, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from jsplan.diagnostics import Diagnostic
    from jsplan.sandbox import Sandbox

CODE = "JS482"
HUB = {"connection": "hub"}


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace whose leaf is misspelt."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {"hub": HUB, "laef": HUB}
    return space.write(streams=[{"name": "S", "domain": ["hub", "laef"]}])


def warnings_of(found: Iterable[Diagnostic]) -> list[tuple[str, str | None]]:
    return [(d.summary, d.address) for d in found if d.code == CODE and d.severity == "warning"]


def test_a_misspelt_leaf(space: Space) -> None:
    """Plan, apply, drift and status warn about an unknown domain, with a suggestion."""
    expected = [("domain laef has never answered", "laef/**")]
    plan, result = space.apply()
    found, shown = (
        drift(space.load, DriftOptions(), RecordingObserver()),
        status(space.load, RecordingObserver()),
    )

    assert (result.exit_code, [d.address for d in plan.deferred]) == (0, ["laef/stream/S"])
    assert [warnings_of(document.diagnostics) for document in (plan, found, shown)] == [
        expected
    ] * 3
    for document in (plan, found, shown):
        [finding] = [d for d in document.diagnostics if d.code == CODE]
        assert 'Did you mean "leaf"?' in finding.detail
        assert "Behind connection hub there are: leaf, hub." in finding.detail
        assert "jsplan domains discover" in finding.detail
        assert finding.range is not None
    assert "has never answered" in plan_view(plan, "markdown")
    assert "has never answered" in plan_view(plan, "html")
    assert all(
        "has never answered" in drift_view(found, name, ())
        for name in ("markdown", "html", "github")
    )


def test_an_offline_domain_is_no_typing_error(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A domain that answered before is offline, and a new JetStream name has never answered."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    streams: list[dict[str, Any]] = [{"name": "S", "domain": ["hub", "leaf"]}]
    assert space.write(streams=streams).apply()[1].exit_code == 0
    clean_hub_leaf["leaf"].stop()
    offline = space.plan()
    space.base["domains"] = {"hub": HUB, "leaf": HUB | {"js_domain": "laef"}}
    renamed = space.write(streams=streams).plan()
    clean_hub_leaf.start()

    assert (len(offline.deferred), warnings_of(offline.diagnostics)) == (1, [])
    assert warnings_of(renamed.diagnostics) == [
        ("domain leaf has never answered as laef", "leaf/**")
    ]


def test_a_fleet_that_is_not_there_yet(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Two hundred planned domains that do not exist yet are one warning."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["domains"] = {
        "hub": HUB,
        "store-{001..200}": HUB | {"labels": ["store"]},
        "oslo": HUB,
    }
    space.write(
        streams=[{"name": "S", "domain": "label:store"}, {"name": "S", "domain": ["hub", "oslo"]}]
    )
    plan = space.plan()

    assert (len(plan.deferred), warnings_of(plan.diagnostics)) == (
        201,
        [("201 domains have never answered: oslo, store-{001..200}", None)],
    )


def test_a_connection_that_cannot_be_opened(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Without any connection to list domains, the warning names only the command for it."""
    space = hub_leaf_space(tmp_path, clean_hub_leaf)
    space.base["connections"]["edge"] = {"url": "nats://127.0.0.1:1"}
    space.base["domains"] = {"hub": HUB, "edge": {"connection": "edge"}}
    [found] = [
        d
        for d in space.write(streams=[{"name": "S", "domain": ["hub", "edge"]}]).plan().diagnostics
        if d.code == CODE
    ]

    assert "Behind connection" not in found.detail
    assert "jsplan domains discover" in found.detail
