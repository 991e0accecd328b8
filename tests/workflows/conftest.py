"""Fixtures of the workflows: a workspace of hub and leaf, and a fleet that tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.sandbox.foreground import leaf_names
from jsplan.sandbox.foreground import run_fleet as running
from tests.conftest import PROGRAM
from tests.support.fleets import Fleet
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox


@pytest.fixture(scope="session")
def _fleet() -> Iterator[Fleet]:
    with running(leaf_names(6), binary=PROGRAM) as sandbox:
        yield Fleet(sandbox)


@pytest.fixture
def fleet(_fleet: Fleet) -> Fleet:
    """The worker's hub with six leaves, running, linked and empty."""
    return _fleet.clean()


@pytest.fixture
def space(tmp_path: Path, clean_hub_leaf: Sandbox) -> Space:
    """A workspace of hub and leaf."""
    return hub_leaf_space(tmp_path, clean_hub_leaf)


@pytest.fixture
def raw(clean_hub_leaf: Sandbox) -> Iterator[Raw]:
    """A connection to the hub."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as client:
        yield client
