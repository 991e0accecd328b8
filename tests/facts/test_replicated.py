"""Deletions in streams with three replicas are as planned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox
from tests.conftest import PROGRAM
from tests.facts.conftest import (
    ChangeTrial,
    FilledServer,
    delete_other_streams,
    lost_counts,
    open_filled_server,
    slow_machine_space,
    try_change,
)
from tests.facts.test_interest import check_bounds, filters, one_with_holes
from tests.facts.test_limits import CAUSES, MANY, check_exact, deleting_limits
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.matrix, pytest.mark.timeout(300)]  # a slow machine fills the server again

REPLICAS: dict[str, Any] = {"num_replicas": 3, "allow_direct": True}
SINGLE_CAUSES = [(cause,) for cause in CAUSES]


@pytest.fixture(scope="module")
def _cluster_server() -> Iterator[FilledServer]:
    with Sandbox.cluster(binary=PROGRAM) as sandbox:
        server = sandbox["n1"]

        def places_streams() -> bool:
            """Create one. The first requests to a new cluster may get no answer."""
            with Raw(server.url, server.user, server.password, timeout=5) as raw:
                return bool(raw.create("FIRST"))

        server.wait_until(places_streams, "create a stream", 60)
        with open_filled_server(server) as filled:
            yield filled


@pytest.fixture
def filled_server(_cluster_server: FilledServer) -> Iterator[FilledServer]:
    """A cluster of three servers with an ORIGIN; a test's other streams are deleted."""
    yield _cluster_server
    delete_other_streams(_cluster_server)


@pytest.fixture
def change_trial(filled_server: FilledServer, tmp_path: Path) -> ChangeTrial:
    """A workspace on the cluster."""
    space = slow_machine_space(tmp_path, filled_server.server)
    space.base["connections"]["main"] |= {
        "user": filled_server.server.user,
        "password": filled_server.server.password,
    }
    return ChangeTrial(filled_server, space)


@pytest.mark.parametrize(
    ("causes", "storage"),
    [*((causes, "file") for causes in [*SINGLE_CAUSES, CAUSES]), (CAUSES, "memory")],
)
def test_limits_of_replicated_streams(
    filled_server: FilledServer, change_trial: ChangeTrial, causes: tuple[str, ...], storage: str
) -> None:
    """Each limit, and all together, delete as many messages and bytes as planned."""
    hazard, lost = try_change(
        filled_server,
        change_trial,
        REPLICAS | MANY | {"storage": storage},
        lambda: deleting_limits(filled_server, causes),
    )

    check_exact(hazard, lost, causes, filled_server.level)


def test_replicated_streams_with_gaps(
    filled_server: FilledServer, change_trial: ChangeTrial
) -> None:
    """Deleted messages are not counted, whichever replica answers."""
    hazard, lost = try_change(
        filled_server,
        change_trial,
        REPLICAS | MANY,
        lambda: deleting_limits(filled_server, CAUSES, most=True),
        "HOLED",
    )

    check_exact(hazard, lost, CAUSES, filled_server.level)


@pytest.mark.parametrize("consumers", [one_with_holes, filters])
def test_replicated_streams_that_turn_to_interest(
    filled_server: FilledServer,
    change_trial: ChangeTrial,
    consumers: Callable[[FilledServer, str], None],
) -> None:
    """A change to interest deletes what all consumers acknowledged, on every replica."""
    stream = filled_server.new_mirror(storage="file", **REPLICAS)
    consumers(filled_server, stream)
    before = filled_server.raw.state(stream)

    _, hazard = change_trial.change(stream, body={"retention": "interest"})

    seen: list[Any] = []

    def is_idle() -> bool:
        seen.append(filled_server.raw.state(stream)["messages"])
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    filled_server.server.wait_until(is_idle, "delete messages without interest", 30)
    check_bounds(hazard, lost_counts(before, filled_server.raw.state(stream)))
