"""A stream and its consumers get other replicas in one plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.clusters.scene import ask, make_space, start_cluster
from tests.support.workspaces import RecordingObserver, left_to_do

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

pytestmark = pytest.mark.matrix
#: Retention; replicas of stream and consumer before and after. None: left out, as many as the stream.
SCALINGS = [
    ("limits", (3, 3), (1, 1)),
    ("limits", (3, 3), (1, None)),
    ("limits", (1, 1), (3, 3)),
    ("limits", (3, 1), (1, None)),
    ("workqueue", (3, 3), (1, 1)),
    ("interest", (3, None), (1, None)),
    # nats-server 2.15 takes ten seconds.
    pytest.param("workqueue", (1, 1), (3, 3), marks=pytest.mark.soak),
    pytest.param("interest", (1, 1), (3, None), marks=pytest.mark.soak),
]


NO_NAME = str.maketrans("", "", "(), ")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Three servers that stay up."""
    with start_cluster() as sandbox:
        yield sandbox


def write(space: Space, name: str, retention: str, replicas: tuple[int, int | None]) -> Space:
    """Write a stream and a consumer with these replicas."""
    stream, own = replicas
    consumer: dict[str, Any] = {"name": "C", "ack_policy": "explicit"}
    body = {"name": name, "subjects": [name], "retention": retention, "num_replicas": stream}
    consumers = [consumer | ({} if own is None else {"num_replicas": own})]
    return space.write(streams=[body | {"consumers": consumers}])


@pytest.mark.parametrize(("retention", "before", "after"), SCALINGS)
def test_a_stream_is_scaled_with_its_consumers(
    retention: str,
    before: tuple[int, int | None],
    after: tuple[int, int | None],
    cluster: Sandbox,
    tmp_path: Path,
) -> None:
    """One apply scales both, whichever of them the server scales itself; nothing is drift."""
    space, name = make_space(tmp_path, cluster), f"{retention}-{before}-{after}".translate(NO_NAME)
    assert write(space, name, retention, before).apply()[1].exit_code == 0
    result = write(space, name, retention, after).apply()[1]

    assert [step.error for step in result.steps if step.error] == []
    assert left_to_do(space.plan()) == []
    assert drift(space.load, DriftOptions(), RecordingObserver()).resource_drift == []
    found = ask(cluster, f"$JS.API.CONSUMER.INFO.{name}.C")["config"]["num_replicas"]
    assert found == (after[1] or 0)
