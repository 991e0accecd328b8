"""The shipped edge fleet with 20 real leaf servers, and planned for 500 shops."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsplan.config.model import LoadOptions
from jsplan.options import DriftOptions, PlanOptions
from jsplan.sandbox.foreground import leaf_names
from jsplan.sandbox.foreground import run_fleet as running
from jsplan.workflows.apply import apply
from jsplan.workflows.drift import drift
from jsplan.workflows.plan import plan
from jsplan.workflows.validate import validate
from tests.conftest import PROGRAM
from tests.support.fleets import Fleet
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parent.parent.parent / "examples/edge-fleet/jsplan.yaml"
SHOPS = 20


@pytest.fixture(scope="module")
def shops() -> Iterator[Fleet]:
    """Start a hub and 20 leaves."""
    with running(leaf_names(SHOPS), binary=PROGRAM) as sandbox:
        yield Fleet(sandbox)


def example(folder: Path, shops: Fleet, monkeypatch: pytest.MonkeyPatch, size: str) -> LoadOptions:
    """Copy the example and point it at the test's hub."""
    shutil.copy(EXAMPLE, folder)
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    hub = f"hub={shops.sandbox['hub'].url}"
    return LoadOptions(folder, environment=size, variables=(hub,), environ=os.environ)


@pytest.mark.matrix
def test_twenty_shops(shops: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty shops converge in waves; sales arrive in the hub, and prices in each shop."""
    load = example(tmp_path, shops.clean(), monkeypatch, "small")
    first, result = apply(
        load, PlanOptions(waves=("label:canary", "10%", "100%")), approve, RecordingObserver()
    )
    again, found = (
        plan(load, PlanOptions(), RecordingObserver()),
        drift(load, DriftOptions(), RecordingObserver()),
    )

    assert (result.exit_code, first.summary["add"]) == (0, 3 * SHOPS + 3)
    assert not again.steps
    assert (found.exit_code, found.summary["unmanaged"], found.offline) == (0, 0, [])
    for shop in shops.stores:
        shops.publish(shop, f"sales.{shop}.receipts", 2)
    shops.publish("hub", "prices.milk")
    shops.wait("hub", "ALL_SALES", 2 * SHOPS)
    for shop in shops.stores:
        shops.wait(shop, "PRICES", 1)
    assert shops.ask("CONSUMER.INFO.ALL_SALES.BILLING")["num_pending"] == 2 * SHOPS
    flagship = shops.ask("STREAM.INFO.SALES", "store-017")["config"]
    assert (flagship["max_bytes"], flagship["max_age"]) == (8 * 1024**3, 90 * 86400 * 10**9)


def test_five_hundred_shops(shops: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan for 500 shops creates the 20 that are there and defers the others."""
    load = example(tmp_path, shops.clean(), monkeypatch, "large")
    assert len([address for address in validate(load).resources if address.name == "SALES"]) == 500
    first, result = apply(load, PlanOptions(), approve, RecordingObserver())
    offline = {item.address.partition("/")[0] for item in first.deferred}

    assert (len(offline), len(first.deferred)) == (500 - SHOPS, 3 * (500 - SHOPS))
    assert (result.exit_code, result.summary["added"]) == (0, 3 * SHOPS + 3)
    assert len(shops.ask("STREAM.INFO.ALL_SALES")["config"]["sources"]) == 500, (
        "a source may be made before its origin is there"
    )
    again = plan(load, PlanOptions(), RecordingObserver())
    assert (again.has_changes, len(again.deferred)) == (False, 3 * (500 - SHOPS))
    assert drift(load, DriftOptions(), RecordingObserver()).exit_code == 0, (
        "never seen, so nothing of ours is late"
    )
