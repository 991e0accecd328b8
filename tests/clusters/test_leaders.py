"""Leaders of streams and consumers are balanced over the servers of a cluster."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import MoveProgress, StepStarted
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.clusters.scene import (
    Interference,
    Publisher,
    ask,
    find_bystander,
    make_space,
    start_cluster,
)
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

#: Streams, and one consumer of each.
NAMES = ("A", "B", "D")


@pytest.fixture
def cluster() -> Iterator[Sandbox]:
    """Three servers."""
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
            wait_for(cluster, path, None)
            if find_leader(cluster, path) != server:
                step_down = f"$JS.API.{kind}.LEADER.STEPDOWN.{object_name}"
                answer = ask(cluster, step_down, {"placement": {"preferred": server}})
                assert answer.get("success"), answer
            wait_for(cluster, path, server)


def wait_for(cluster: Sandbox, path: str, server: str | None) -> None:
    """Wait until an object has all replicas, and this leader (None: any)."""
    cluster["c-1"].wait_until(
        lambda: is_complete(cluster, path) and server in (None, find_leader(cluster, path)),
        path,
        30,
    )


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
        "c-2-server": 2,
        "c-3-server": 2,
    }
    assert {before for before, _ in list_moves(plan).values()} == {"c-1-server"}
    assert [h for change in plan.resource_changes for h in change.hazards] == []
    assert [found.code for found in plan.diagnostics if found.code.startswith("JS46")] == ["JS468"]
    result = apply(space, observer)
    assert result.exit_code == 0, result
    assert {event.id for event in observer.events if isinstance(event, MoveProgress)} <= {
        step.id for step in plan.steps
    }
    assert count_leaders(cluster, "STREAM", NAMES) == [1, 1, 1]
    assert count_leaders(cluster, "CONSUMER", NAMES) == [1, 1, 1]
    assert [step.title for step in space.plan().steps] == []


def apply(space: Space, observer: RecordingObserver, **options: Any) -> ApplyResult:
    """Apply what the files say."""
    return applying.apply(space.load, PlanOptions(**options), approve, observer)[1]


@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_what_keeps_a_leader_from_moving_is_named(
    cluster: Sandbox, tmp_path: Path, server_version: tuple[int, int, int]
) -> None:
    """An election meanwhile, and servers that are down or stop before their turn, end as named."""
    space = write(make_space(tmp_path, cluster), "A", "B", balance=None)
    space.apply()
    if server_version < (2, 11):
        return
    number = find_bystander(cluster)
    down, other = f"c-{number}-server", f"c-{5 - number}-server"
    place_leaders(cluster, "c-1-server", ("A", "B"))
    write(space, "A", "B")
    (moved, target), *_ = [
        (address, after)
        for address, (_, after) in list_moves(space.plan()).items()
        if "/stream/" in address
    ]
    name = moved.rpartition("/")[2]
    third = next(n for n in ("c-2-server", "c-3-server") if n != target)

    def elect() -> None:
        ask(
            cluster,
            f"$JS.API.STREAM.LEADER.STEPDOWN.{name}",
            {"placement": {"preferred": third}},
        )
        cluster["c-1"].wait_until(
            lambda: find_leader(cluster, f"STREAM.INFO.{name}") == third, "election", 30
        )

    elsewhere = apply(space, Interference(StepStarted, elect), parallelism=1)
    failed = {step.address: step.error for step in elsewhere.steps if step.status == "failed"}
    assert elsewhere.exit_code == 6
    assert failed == {
        moved: f"{third} leads {moved} since it was planned, and not c-1-server; "
        "nothing was sent. The next plan counts again"
    }

    place_leaders(cluster, "c-1-server", ("A", "B"))
    plan = space.plan()
    to_down = {a for a, (_, after) in list_moves(plan).items() if after == down}
    cluster[f"c-{number}"].stop()
    cluster["c-1"].wait_until(lambda: space.plan().steps == [], "see it offline", 60)
    said = [found.summary for found in space.plan().diagnostics if found.code == "JS468"]
    result = space.apply_saved(plan)

    assert said == [f"the leaders of domain main stay: {down} is offline"]
    errors = {step.address: step.error or "" for step in result.steps if step.status == "failed"}
    assert errors.keys() == to_down
    # The leader may not have noticed yet; then the cluster elects another server.
    causes = (f"{down} cannot lead", f"and not {down}")
    assert all(any(cause in text for cause in causes) for text in errors.values()), errors
    assert result.exit_code == (6 if to_down else 0)
    assert all(
        find_leader(cluster, f"STREAM.INFO.{name}") in ("c-1-server", other) for name in "AB"
    )


@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_publishers_wait_for_an_election(
    cluster: Sandbox, tmp_path: Path, server_version: tuple[int, int, int]
) -> None:
    """Acknowledged messages are stored while leaders move; publishers wait for a moment."""
    space = write(make_space(tmp_path, cluster), *NAMES, balance=None)
    space.apply()
    if server_version < (2, 11):
        return
    place_leaders(cluster, "c-1-server", NAMES)
    write(space, *NAMES)
    moved = next(a.rpartition("/")[2] for a in list_moves(space.plan()) if "/stream/" in a)
    with Publisher(cluster, moved.lower()) as publisher:
        result = apply(space, RecordingObserver())
    stored = ask(cluster, f"$JS.API.STREAM.INFO.{moved}")["state"]["messages"]

    assert result.exit_code == 0
    assert find_leader(cluster, f"STREAM.INFO.{moved}") != "c-1-server"
    assert publisher.acknowledged <= stored <= publisher.sent
    assert publisher.acknowledged > 10
    assert publisher.longest_gap < 10
