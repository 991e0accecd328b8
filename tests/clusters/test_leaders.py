"""Leaders of streams and consumers are balanced over the servers of a cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import MoveProgress
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.clusters.scene import ask, make_space, start_cluster
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

#: Streams, and one consumer of each.
NAMES = ("A", "B", "D", "E", "F", "G")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Three servers that stay up."""
    with start_cluster() as sandbox:
        yield sandbox


def write(space: Space, *names: str, **domain: Any) -> Space:
    """Write streams of three replicas with one consumer each, in a domain that is balanced."""
    settings = {"connection": "main", "js_domain": None, "balance": {"leaders": True}} | domain
    space.base["domains"] = {"main": settings}
    return space.write(
        streams=[
            {
                "name": name,
                "subjects": [name.lower()],
                "num_replicas": 3,
                "consumers": [{"name": "C", "ack_policy": "explicit"}],
            }
            for name in names
        ]
    )


def find_leader(cluster: Sandbox, path: str) -> str:
    """Return the leader of `STREAM.INFO.A` or `CONSUMER.INFO.A.C`; empty during an election."""
    return str((ask(cluster, f"$JS.API.{path}").get("cluster") or {}).get("leader") or "")


def place_leaders(cluster: Sandbox, server: str, names: tuple[str, ...]) -> None:
    """Let one server lead all these streams and their consumers."""
    for name in names:
        for kind, object_name in (("STREAM", name), ("CONSUMER", f"{name}.C")):
            path = f"{kind}.INFO.{object_name}"
            cluster["c-1"].wait_until(lambda path=path: is_complete(cluster, path), path, 30)
            if find_leader(cluster, path) != server:
                step_down = f"$JS.API.{kind}.LEADER.STEPDOWN.{object_name}"
                answer = ask(cluster, step_down, {"placement": {"preferred": server}})
                assert answer.get("success"), answer
            cluster["c-1"].wait_until(
                lambda path=path: find_leader(cluster, path) == server, path, 30
            )
            cluster["c-1"].wait_until(lambda path=path: is_complete(cluster, path), path, 30)


def is_complete(cluster: Sandbox, path: str) -> bool:
    """Check that an object has a leader, and both other replicas are current."""
    found = ask(cluster, f"$JS.API.{path}").get("cluster") or {}
    current = [peer for peer in found.get("replicas") or [] if peer.get("current")]
    return bool(found.get("leader")) and len(current) == 2


def count_leaders(cluster: Sandbox, kind: str, names: tuple[str, ...]) -> list[int]:
    """Return how many each server leads, sorted."""
    suffix = ".C" if kind == "CONSUMER" else ""
    found = Counter(find_leader(cluster, f"{kind}.INFO.{name}{suffix}") for name in names)
    return sorted(found.values())


def list_moves(plan: Plan) -> dict[str, tuple[Any, Any]]:
    """Return the leaders that a plan moves, by address."""
    return {
        resource.address: (field.before, field.after)
        for resource in plan.resource_changes
        for field in resource.change.fields
        if field.path == "leader"
    }


@pytest.mark.matrix
def test_leaders_are_balanced_and_stay(
    cluster: Sandbox, tmp_path: Path, server_version: tuple[int, int, int]
) -> None:
    """All leaders on one server: the fewest moves spread them, and the next plan is empty."""
    space, observer = make_space(tmp_path, cluster), RecordingObserver()
    write(space, *NAMES, balance=None).apply()
    if server_version < (2, 11):
        refused = write(space, *NAMES).plan()
        assert [found.code for found in refused.diagnostics if found.severity == "error"] == [
            "JS469"
        ]
        return
    place_leaders(cluster, "c-1-server", NAMES)
    plan = write(space, *NAMES).plan()

    assert Counter(after for _, after in list_moves(plan).values()) == {
        "c-2-server": 4,
        "c-3-server": 4,
    }
    assert {before for before, _ in list_moves(plan).values()} == {"c-1-server"}
    assert [h for change in plan.resource_changes for h in change.hazards] == []
    assert [found.code for found in plan.diagnostics if found.code.startswith("JS46")] == ["JS468"]
    result = applying.apply(space.load, PlanOptions(), approve, observer)[1]
    assert result.exit_code == 0, result
    assert {event.id for event in observer.events if isinstance(event, MoveProgress)} <= {
        step.id for step in plan.steps
    }
    assert count_leaders(cluster, "STREAM", NAMES) == [2, 2, 2]
    assert count_leaders(cluster, "CONSUMER", NAMES) == [2, 2, 2]
    assert [step.title for step in space.plan().steps] == []
