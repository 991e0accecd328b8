"""Data at risk in a cluster: streams with three copies lose what the plan says, by each limit, by all at once, and by interest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.facts.conftest import Lake, Trial, cleared, filled, lost, patient_space, tried
from tests.facts.test_interest import check_bounds, filters, one_with_holes
from tests.facts.test_limits import CAUSES, MANY, check_exact, limits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine pours and tries again

COPIES: dict[str, Any] = {"num_replicas": 3, "allow_direct": True}
ALONE = [(cause,) for cause in CAUSES]


@pytest.fixture(scope="module")
def _country() -> Iterator[Lake]:
    with Sandbox.cluster(binary=PROGRAM) as sandbox, filled(sandbox["n1"]) as lake:
        yield lake


@pytest.fixture
def lake(_country: Lake) -> Iterator[Lake]:
    """Three servers with an ORIGIN; what a test makes beside it is deleted."""
    yield _country
    cleared(_country)


@pytest.fixture
def trial(lake: Lake, tmp_path: Path) -> Trial:
    """A workspace on the cluster."""
    space = patient_space(tmp_path, lake.server)
    space.base["connections"]["main"] |= {"user": lake.server.user, "password": lake.server.password}
    return Trial(lake, space)


@pytest.mark.parametrize(("causes", "storage"), [*((causes, "file") for causes in [*ALONE, CAUSES]), (CAUSES, "memory")])
def test_limits_of_replicated_streams(lake: Lake, trial: Trial, causes: tuple[str, ...], storage: str) -> None:
    """Each limit, and all together, delete as many messages and bytes as planned."""
    hazard, gone = tried(lake, trial, COPIES | MANY | {"storage": storage}, lambda: limits(lake, causes))

    check_exact(hazard, gone, causes, lake.level)


def test_replicated_streams_with_gaps(lake: Lake, trial: Trial) -> None:
    """Deleted messages do not mislead, whichever replica answers."""
    hazard, gone = tried(lake, trial, COPIES | MANY, lambda: limits(lake, CAUSES, much=True), "HOLED")

    check_exact(hazard, gone, CAUSES, lake.level)


@pytest.mark.parametrize("consumers", [one_with_holes, filters])
def test_replicated_streams_that_turn_to_interest(lake: Lake, trial: Trial, consumers: Callable[[Lake, str], None]) -> None:
    """What is acknowledged by all goes from every replica, as planned or between the bounds."""
    stream = lake.copy(storage="file", **COPIES)
    consumers(lake, stream)
    before = lake.state(stream)

    _, hazard = trial.change(stream, body={"retention": "interest"})

    seen: list[Any] = []

    def quiet() -> bool:
        seen.append(lake.state(stream)["messages"])
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    lake.server.wait_until(quiet, "delete what nobody wants", 30)
    check_bounds(hazard, lost(before, lake.state(stream)))
