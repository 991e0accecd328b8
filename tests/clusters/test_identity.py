"""A restored stream has another `created` on each server of a cluster, and stays one stream."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backup.run import BackupOptions
from jsplan.options import DriftOptions
from jsplan.workflows.backup import backup
from jsplan.workflows.drift import drift
from jsplan.workflows.restore import RestoreOptions, restore
from tests.clusters.scene import ask, connect, find_servers, make_space, start_cluster
from tests.support import stream_content
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

MESSAGES = 50
ALLOWED = ("REMOVES_SUBJECTS", "IRREVERSIBLE", "DUPLICATES_MESSAGES")


@pytest.fixture
def cluster() -> Iterator[Sandbox]:
    """Three servers."""
    with start_cluster() as sandbox:
        yield sandbox


def created(cluster: Sandbox, stream: str = "S") -> str:
    """Return what the leader reports."""
    return str(ask(cluster, f"$JS.API.STREAM.INFO.{stream}")["created"])


def elect(cluster: Sandbox, server: str, stream: str = "S") -> str:
    """Let a server lead the stream, and return the `created` that it reports."""
    node = cluster["c-1"]
    if find_servers(cluster, stream)[0] != server:
        node.wait_until(
            lambda: server in find_servers(cluster, stream)[1], "replica that is current", 30
        )
        step_down = f"$JS.API.STREAM.LEADER.STEPDOWN.{stream}"
        ask(cluster, step_down, {"placement": {"preferred": server}})
        node.wait_until(lambda: find_servers(cluster, stream)[0] == server, "new leader", 30)
    return created(cluster, stream)


def write(space: Space, name: str = "S", **stream: Any) -> Space:
    """Write one stream of three replicas that is preserved."""
    consumers = [{"name": "C", "ack_policy": "explicit"}]
    own = {"name": name, "subjects": ["S.>"], "num_replicas": 3, "consumers": consumers}
    return space.write(streams=[own | {"lifecycle": {"on_replace": "preserve"}} | stream])


@pytest.fixture
def space(tmp_path: Path, cluster: Sandbox, server_version: tuple[int, ...]) -> Space:
    """A stream that a replacement restored, whose leader is the server that restored it."""
    space = write(make_space(tmp_path, cluster))
    space.apply()
    with connect(cluster) as raw:
        stream_content.fill(raw, "S", MESSAGES)
        raw.ack(raw.pull("S", "C", 5))
    assert write(space, storage="memory").apply(allow_hazards=ALLOWED)[1].exit_code == 0
    leader, others = find_servers(cluster, "S")
    own = created(cluster)
    reported = {elect(cluster, server) for server in others}
    assert (own in reported) == (server_version < (2, 15))
    elect(cluster, leader)
    return space


def drifted(space: Space) -> list[tuple[str, str | None]]:
    """Return what `drift` says of each resource."""
    found = drift(space.load, DriftOptions(), RecordingObserver()).resource_drift
    return [(change.address, change.action_reason) for change in found]


def test_an_election_is_no_change(space: Space, cluster: Sandbox) -> None:
    """With each leader there is no drift, and a change is one update, also of the replicas."""
    written: dict[str, Any] = {"storage": "memory"}
    for change in ({"max_msgs": 1_000}, {"max_msgs": 2_000}, {"num_replicas": 1}):
        elect_all(cluster)
        assert (drifted(space), write(space, **written).plan().steps) == ([], [])
        written |= change
        changed = write(space, **written).plan()
        assert [step.op for step in changed.steps] == ["stream.update"]
        elect_all(cluster)
        assert space.apply_saved(changed).exit_code == 0
        assert (drifted(space), space.plan().steps) == ([], [])


def make_again(cluster: Sandbox) -> None:
    """Delete the stream and create it with the same configuration, as another client does."""
    config = ask(cluster, "$JS.API.STREAM.INFO.S")["config"]
    ask(cluster, "$JS.API.STREAM.DELETE.S")
    ask(cluster, "$JS.API.STREAM.CREATE.S", config)


def test_a_stream_of_another_client_is_seen(
    space: Space, cluster: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """A stream that another client created or restored is drift, whichever server leads it.

    Archives before 2.15 have the `created` of their stream.
    """
    make_again(cluster)
    for server in find_servers(cluster, "S")[1]:
        elect(cluster, server)
        assert ("main/stream/S", "drift_recreated") in drifted(space)
    space.apply()  # imports it
    assert drifted(space) == []

    if server_version < (2, 15):
        return
    # Delete the stream and restore a backup of it, as another workspace does.
    folder = tmp_path / "other"
    folder.mkdir()
    other = make_space(folder, cluster).write()
    backup(other.load, BackupOptions(("main/**",), folder / "out"), RecordingObserver())
    ask(cluster, "$JS.API.STREAM.DELETE.S")
    restore(other.load, RestoreOptions(folder / "out"), approve, RecordingObserver())
    for server in find_servers(cluster, "S")[1]:
        elect(cluster, server)
        assert ("main/stream/S", "drift_recreated") in drifted(space)


def elect_all(cluster: Sandbox) -> None:
    """Let another server lead each stream, one that reports another `created` if there is one.

    A stream whose restore was interrupted has a name, and no leader.
    """
    for stream in ask(cluster, "$JS.API.STREAM.NAMES")["streams"]:
        leader, others = find_servers(cluster, stream)
        before = created(cluster, stream) if leader else ""
        any(elect(cluster, server, stream) != before for server in others)


def die(space: Space, point: int) -> int:
    """Let an apply die after so many writes; return how many it did."""
    with kill_after(point) as counter, suppress(SimulatedKill):
        assert space.apply(allow_hazards=ALLOWED)[1].exit_code == 0
    return counter.done


def require_kept(space: Space, cluster: Sandbox, stream: str) -> None:
    """Require convergence, every message, and the position of the consumer."""
    result = space.apply(allow_hazards=ALLOWED)[1]
    if any("does not answer" in (step.error or "") for step in result.steps):
        result = space.apply(allow_hazards=ALLOWED)[1]  # a cluster that was still electing
    assert (result.exit_code, [step.error for step in result.steps if step.error]) == (0, [])
    assert (space.plan().steps, drifted(space)) == ([], [])
    assert ask(cluster, "$JS.API.STREAM.NAMES")["streams"] == [stream]
    assert ask(cluster, f"$JS.API.STREAM.INFO.{stream}")["state"]["messages"] == MESSAGES

    def is_at_its_position() -> bool:
        consumer = ask(cluster, f"$JS.API.CONSUMER.INFO.{stream}.C")
        return bool(consumer["num_pending"] + consumer["num_ack_pending"] == MESSAGES - 5)

    # A new leader of the consumer counts the pending messages a moment later.
    cluster["c-1"].wait_until(is_at_its_position, "position of the consumer", 30)
    with connect(cluster) as raw:
        assert raw.api("S.x", "message")["stream"] == stream


#: Writes after which an apply dies, and another server leads each stream.
POINTS = [
    *(8, 11),
    *(pytest.param(n, marks=pytest.mark.soak) for n in range(1, 40) if n not in (8, 11)),
]


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_replacement_survives_an_election(
    point: int, space: Space, cluster: Sandbox
) -> None:
    """The next apply finishes a replacement, although another server leads each stream by then."""
    die(write(space, storage="file"), point)
    elect_all(cluster)
    require_kept(space, cluster, "S")


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_relocation_survives_an_election(
    point: int, space: Space, cluster: Sandbox
) -> None:
    """The same for a stream that gets another name."""
    space.base["relocate"] = [{"from": "main/stream/S", "to": "main/stream/T"}]
    die(write(space, "T", storage="memory"), point)
    elect_all(cluster)
    require_kept(space, cluster, "T")
