"""Fixtures of the workflows: a fleet that is shared by a worker's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.sandbox.foreground import leaf_names
from jsplan.sandbox.foreground import run_fleet as running
from tests.conftest import PROGRAM
from tests.support.fleets import Fleet

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def _fleet() -> Iterator[Fleet]:
    with running(leaf_names(6), binary=PROGRAM) as sandbox:
        yield Fleet(sandbox)


@pytest.fixture
def fleet(_fleet: Fleet) -> Fleet:
    """The worker's hub with six leaves, running, linked and empty."""
    return _fleet.clean()
