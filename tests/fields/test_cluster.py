"""Behaviour of a cluster alone: replicas, placement, and updates that wait for each other."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.sandbox import Sandbox, Server
from tests.conftest import PROGRAM
from tests.support.raw import Raw, delete_all_streams
from tests.support.workspaces import Space, left_to_do, new_space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.plan import Plan


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Start three servers with tags."""
    with Sandbox.cluster(binary=PROGRAM, extra='server_tags: ["az:a", "ssd"]') as sandbox:
        yield sandbox


@pytest.fixture
def space(cluster: Sandbox, tmp_path: Path) -> Space:
    """Write a workspace whose one domain is the cluster, which has no stream."""
    server = cluster["n1"]
    delete_streams(server)
    connection = {"url": server.url, "user": server.user, "password": server.password}
    domains = {"main": {"connection": "main", "js_domain": None}}
    return new_space(tmp_path, connections={"main": connection}, domains=domains)


def delete_streams(server: Server) -> None:
    """Delete every stream.

    Up to 2.14 a stream that is just being scaled is deleted without an answer.
    """
    for _ in range(10):
        with (
            contextlib.suppress(TimeoutError),
            Raw(server.url, server.user, server.password, timeout=2) as raw,
        ):
            delete_all_streams(raw)
            return
    raise AssertionError("streams remain")


def apply_streams(space: Space, *streams: dict[str, Any]) -> Plan:
    """Apply these streams and return the plan; check that nothing is left to do."""
    plan, result = space.write(streams=list(streams)).apply(allow_hazards=("REMOVES_SUBJECTS",))
    assert result.exit_code == 0, result
    again = space.plan()
    assert left_to_do(again) == []
    return plan


def titles(plan: Plan) -> list[str]:
    """Return the titles of the steps."""
    return [step.title for step in plan.steps]


@pytest.mark.matrix
def test_a_stream_is_moved_and_then_scaled_up(space: Space) -> None:
    """A stream is moved first and scaled up after that: both in one update are refused (10123)."""
    apply_streams(space, {"name": "A", "num_replicas": 1})

    plan = apply_streams(
        space,
        {
            "name": "A",
            "num_replicas": 3,
            "placement": {"tags": ["az:a"]},
            "description": "with the rest",
        },
    )

    assert titles(plan) == ["update stream A in main: move it", "update stream A in main"]
    assert [step.precondition.get("wait_until_stable") for step in plan.steps] == [
        "main/stream/A"
    ] * 2


@pytest.mark.matrix
def test_a_stream_is_scaled_down_and_then_moved(space: Space) -> None:
    """A stream is scaled down first, so that fewer replicas move; the plan shows one update."""
    apply_streams(space, {"name": "A", "num_replicas": 3})

    plan = apply_streams(space, {"name": "A", "placement": {"tags": ["az:a", "ssd"]}})

    assert titles(plan) == [
        "update stream A in main: scale it to 1 replica",
        "update stream A in main",
    ]
    assert [change.change.actions for change in plan.resource_changes] == [["update"]]
    assert {h.code for c in plan.resource_changes for h in c.hazards} == {
        "REDUCES_REPLICAS",
        "MOVES_DATA",
    }


def test_subjects_are_swapped_by_streams_that_move_and_scale(space: Space) -> None:
    """Streams that move, scale and swap their subjects are updated in an order that works.

    The part before the update also comes before the step that parks its subjects, and is not undone by it.
    """
    apply_streams(space, {"name": "A", "subjects": ["a"]}, {"name": "B", "subjects": ["b"]})

    changed = {"num_replicas": 3, "placement": {"tags": ["ssd"]}}
    plan = apply_streams(
        space,
        {"name": "A", "subjects": ["b"]} | changed,
        {"name": "B", "subjects": ["a"]} | changed,
    )

    assert len(plan.steps) == 5


@pytest.mark.matrix
def test_one_change_after_the_other_waits_for_the_cluster(space: Space) -> None:
    """An apply waits until the cluster has scaled a stream for the one before (10226, 10124)."""
    space.write(streams=[{"name": "A"}]).apply()
    for streams in (
        [{"name": "A", "num_replicas": 3}],
        [{"name": "A", "num_replicas": 3, "placement": {"tags": ["ssd"]}}],
    ):
        _, result = space.write(streams=streams).apply()
        assert result.exit_code == 0, result


def test_copies_in_a_cluster_are_announced_with_their_bytes(cluster: Sandbox, space: Space) -> None:
    """`MOVES_DATA` counts the bytes of each new copy, and stops nothing; a removal is no move."""
    apply_streams(space, {"name": "A", "subjects": ["a"], "placement": {"tags": ["ssd"]}})
    server = cluster["n1"]
    with Raw(server.url, server.user, server.password) as raw:
        raw.request("a", b"x" * 1000)
        size = raw.state("A")["bytes"]
    found = []
    for change in (
        {"num_replicas": 3},
        {"num_replicas": 3, "placement": {"tags": ["az:a"]}},
        {"placement": {"tags": ["az:a", "ssd"]}},
        {},
    ):
        plan = space.write(streams=[{"name": "A", "subjects": ["a"], **change}]).plan()
        found.append(
            [
                (hazard.message, hazard.bytes, hazard.blocking)
                for hazard in plan.resource_changes[0].hazards
            ]
        )

    assert found == [
        [("the messages are copied to 2 more servers", 2 * size, False)],
        [("the stream moves to up to 3 other servers", 3 * size, False)],
        [("the stream moves to another server", size, False)],
        [],
    ]


@pytest.mark.matrix
def test_removing_a_placement_is_no_move(space: Space) -> None:
    """Removing a placement is one update, since only a new placement moves a stream."""
    apply_streams(space, {"name": "A", "placement": {"tags": ["ssd"]}})

    assert titles(apply_streams(space, {"name": "A", "num_replicas": 3})) == [
        "update stream A in main"
    ]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("stream", "consumer", "says"),
    [
        ({}, {"num_replicas": 3}, "10126"),
        ({"num_replicas": 3, "retention": "interest"}, {"num_replicas": 1}, "10134"),
        ({"num_replicas": 3, "retention": "workqueue"}, {"num_replicas": 1}, "10134"),
    ],
)
def test_replicas_of_a_consumer_fit_its_stream(
    stream: dict[str, Any], consumer: dict[str, Any], says: str, space: Space
) -> None:
    """A consumer has at most the replicas of its stream, and as many in an interest stream."""
    consumers = [{"name": "C", "ack_policy": "explicit"} | consumer]
    plan = space.write(streams=[{"name": "A", "consumers": consumers} | stream]).plan()

    errors = [d for d in plan.diagnostics if d.severity == "error"]
    assert [(d.address, says in d.summary) for d in errors] == [("main/consumer/A/C", True)]


@pytest.mark.matrix
def test_replicas_are_no_error_in_a_cluster(space: Space) -> None:
    """A consumer with one replica is no error for a stream with three in a cluster."""
    apply_streams(
        space, {"name": "A", "num_replicas": 3, "consumers": [{"name": "C", "num_replicas": 1}]}
    )


@pytest.mark.matrix
def test_consumers_wait_for_their_stream_to_be_scaled(space: Space) -> None:
    """A new consumer waits while its stream is scaled (10023 on 2.15); a deleted one does not."""
    apply_streams(space, {"name": "A", "consumers": [{"name": "OLD"}, {"name": "KEPT"}]})

    consumers = [
        {"name": "NEW", "ack_policy": "explicit"},
        {"name": "KEPT", "description": "changed"},
    ]
    plan = apply_streams(space, {"name": "A", "num_replicas": 3, "consumers": consumers})

    assert titles(plan)[:2] == ["delete consumer OLD of A in main", "update stream A in main"]
    waiting = [step for step in plan.steps[1:] if step.op != "consumer.delete_placeholder"]
    assert {step.precondition.get("wait_until_stable") for step in waiting} == {"main/stream/A"}


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_a_placeholder_waits_for_its_stream_to_be_scaled(space: Space) -> None:
    """Consumers of an interest stream exchange their filters while it is scaled."""
    stream = {"name": "I", "subjects": ["i.>"], "retention": "interest"}
    filters = ["i.a", "i.b"]
    consumers = [{"name": n, "filter_subject": f} for n, f in zip("CD", filters, strict=True)]
    apply_streams(space, {**stream, "consumers": consumers})
    consumers = [{"name": n, "filter_subject": f} for n, f in zip("DC", filters, strict=True)]
    plan = apply_streams(space, {**stream, "num_replicas": 3, "consumers": consumers})

    create = next(step for step in plan.steps if step.op == "consumer.create_placeholder")
    assert create.precondition["wait_until_stable"] == "main/stream/I"
