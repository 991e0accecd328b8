from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jsplan.sandbox import Sandbox
from jsplan.sandbox.sites import Account, Site
from tests.conftest import PROGRAM
from tests.rehearsal.tampered_plans import (
    leftover_files,
    refusals,
    rehearse_tampered,
    temporary_folder,
)
from tests.support.workspaces import Space

CLUSTER = Site(
    "n",
    (Account("A1"),),
    domain="hub",
    cluster="east",
    size=3,
    tags=(("ssd", "az:1"), ("ssd", "az:2"), ("az:3",)),
)
APPLIED: list[dict[str, Any]] = [
    {
        "name": "EVERYWHERE",
        "num_replicas": 3,
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    },
    {"name": "FAST", "num_replicas": 2, "placement": {"tags": ["ssd"]}},
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """A real cluster of three servers, two of which have the tag `ssd`."""
    with Sandbox.of_sites([CLUSTER], "secret", binary=PROGRAM) as sandbox:
        yield sandbox


@pytest.fixture(scope="module")
def space(cluster: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Space:
    """A workspace with the cluster as domain hub, and two applied streams."""
    connections = {"hub": {"url": cluster["n-1"].url, "user": "A1", "password": "secret"}}
    base = {
        "jsplan": 1,
        "workspace": "test",
        "connections": connections,
        "domains": {"hub": {"connection": "hub"}},
    }
    made = Space(tmp_path_factory.mktemp("space"), base).write(streams=APPLIED)
    assert made.apply()[1].exit_code == 0
    return made


@pytest.mark.matrix
def test_replicas_tags_and_moves_are_rehearsed_on_a_cluster_of_the_same_size(
    space: Space, tmp_path: Path
) -> None:
    """Replicas, proven tags, scaling and moving are rehearsed on three servers."""
    everywhere, fast = APPLIED
    space.write(
        streams=[
            everywhere | {"num_replicas": 1, "description": "scaled"},
            fast | {"description": "changed"},
            {"name": "NEW", "num_replicas": 3},
            {
                "name": "ALSO_FAST",
                "num_replicas": 2,
                "placement": {"tags": ["ssd"], "cluster": "east"},
            },
        ]
    )

    with temporary_folder(tmp_path / "tmp"):
        plan = rehearse_tampered(space, {})

    assert refusals(plan) == {}
    assert [d for d in plan.diagnostics if d.code.startswith("JS46")] == []
    assert plan.rehearsal is not None
    assert (plan.rehearsal.blocked, plan.rehearsal.not_tried) == (0, 0)
    assert leftover_files(tmp_path / "tmp") == []


@pytest.mark.matrix
def test_more_replicas_than_the_cluster_has_servers_are_refused(space: Space) -> None:
    """Five replicas on three servers, which planning cannot know, are refused."""
    space.write(
        streams=[
            *APPLIED,
            {"name": "FIVE", "num_replicas": 5},
            {"name": "THREE", "num_replicas": 3},
        ]
    )

    plan = space.plan(rehearse=True)

    assert refusals(plan) == {"hub/stream/FIVE": "10005"}


def test_unproven_tags_are_a_warning(space: Space) -> None:
    """Tags that no live stream proves give a warning, and the other steps are rehearsed."""
    space.write(
        streams=[
            *APPLIED,
            {"name": "TAPE", "placement": {"tags": ["tape"]}},
            {"name": "ALL_FAST", "num_replicas": 3, "placement": {"tags": ["ssd"]}},
        ]
    )

    plan = space.plan(rehearse=True)

    summaries = {str(d.address): d.summary for d in plan.diagnostics}
    assert refusals(plan) == {}
    assert summaries.keys() == {"hub/stream/TAPE", "hub/stream/ALL_FAST"}
    assert summaries["hub/stream/TAPE"].startswith(
        "not rehearsed: whether enough servers have the tags tape"
    )


def test_a_step_in_another_cluster_is_left_out(space: Space) -> None:
    """A step in another cluster is left out, with the steps that depend on it."""
    elsewhere = {
        "name": "WEST",
        "placement": {"cluster": "west"},
        "consumers": [{"name": "C", "ack_policy": "explicit"}],
    }
    space.write(streams=[*APPLIED, elsewhere, {"name": "EAST", "placement": {"cluster": "east"}}])

    plan = space.plan(rehearse=True)

    found = [(d.code, d.address) for d in plan.diagnostics if d.code != "JS222"]
    assert found == [("JS462", "hub/stream/WEST")]
    assert plan.rehearsal is not None
    assert (plan.rehearsal.steps, plan.rehearsal.refused, plan.rehearsal.not_tried) == (3, 0, 2)
