"""An apply follows what a cluster does after it: moves and scalings of streams."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.documents.apply import MoveProgress, StepFinished, StepStarted
from jsplan.errors import ConnectError
from jsplan.options import PlanOptions
from jsplan.workflows import apply as applying
from tests.clusters.scene import (
    Interference,
    ask,
    connect,
    find_bystander,
    find_servers,
    make_space,
    start_cluster,
)
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.documents.apply import ApplyResult
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

AT_1: dict[str, Any] = {"placement": {"tags": ["az:1"]}}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Sandbox]:
    """Three servers that stay up."""
    with start_cluster() as sandbox:
        yield sandbox


@pytest.fixture
def broken() -> Iterator[Sandbox]:
    """Three servers that the test stops."""
    with start_cluster() as sandbox:
        yield sandbox


def apply(space: Space, observer: RecordingObserver | None = None, **stream: Any) -> ApplyResult:
    """Apply one stream `A`."""
    space.write(streams=[{"name": "A", "subjects": ["a"]} | stream])
    watching = observer or RecordingObserver()
    return applying.apply(space.load, PlanOptions(), approve, watching)[1]


def plan_ops(space: Space) -> list[str] | None:
    """Return the steps of a plan; None while the cluster elects a leader."""
    try:
        return [step.op for step in space.plan().steps]
    except ConnectError:
        return None


def fill(cluster: Sandbox, size: int = 20_000, count: int = 500) -> None:
    """Publish messages, so that a replica has something to fetch."""
    with connect(cluster) as raw:
        for _ in range(count):
            raw.publish("a", b"x" * size)
        raw.flush()


def has_others(cluster: Sandbox, count: int) -> bool:
    """Check whether as many servers as these have all messages, beside the leader."""
    return len(find_servers(cluster, "A")[1]) == count


@pytest.mark.matrix
def test_an_apply_ends_when_the_cluster_has_moved_and_scaled(
    cluster: Sandbox, tmp_path: Path
) -> None:
    """Scaled to 3 and to 1, and moved by tag: the apply ends when the servers have done it."""
    space, observer = make_space(tmp_path, cluster), RecordingObserver()
    results = [apply(space, **AT_1)]
    fill(cluster)
    found = []
    changes: list[dict[str, Any]] = [{"num_replicas": 3}, {}, {"placement": {"tags": ["az:2"]}}]
    for changed in changes:
        results.append(apply(space, observer, **changed))
        # A replica may be behind for a moment, also when it has been current.
        others = changed.get("num_replicas", 1) - 1
        cluster["c-1"].wait_until(partial(has_others, cluster, others), "have current replicas", 10)
        found.append(find_servers(cluster, "A"))
        assert not space.plan().steps

    assert [result.exit_code for result in results] == [0, 0, 0, 0], results
    assert found[0] == ("c-1-server", ["c-2-server", "c-3-server"])
    assert found[1][1] == []
    assert found[2] == ("c-2-server", [])
    moves = [event for event in observer.events if isinstance(event, MoveProgress)]
    assert moves
    assert ask(cluster, "$JS.API.STREAM.INFO.A")["state"]["messages"] == 500


def test_moves_run_one_after_the_other_or_are_not_waited_for(
    cluster: Sandbox, tmp_path: Path
) -> None:
    """`--moves 1` begins a move when the one before has ended; `--no-wait` follows none."""
    space = make_space(tmp_path, cluster)
    observed = []
    for replicas, options in (
        (1, PlanOptions()),
        (3, PlanOptions(moves=1)),
        (1, PlanOptions(follow=False)),
    ):
        streams = [{"name": f"M{n}", "subjects": [f"m{n}"], "num_replicas": replicas} for n in "12"]
        observer = RecordingObserver()
        space.write(streams=streams)
        assert applying.apply(space.load, options, approve, observer)[1].exit_code == 0
        observed.append(observer.events)

    steps = [type(e) for e in observed[1] if isinstance(e, StepStarted | StepFinished)]
    assert steps == [StepStarted, StepFinished] * 2
    assert any(isinstance(event, MoveProgress) for event in observed[1])
    assert not any(isinstance(event, MoveProgress) for event in observed[2])


@pytest.mark.matrix
def test_ctrl_c_leaves_a_move_to_the_servers(
    broken: Sandbox, tmp_path: Path, server_version: tuple[int, ...]
) -> None:
    """The step is done and in state, and says how to follow and to cancel the move.

    Until it has ended the server refuses each update (10124). Only the system account can cancel
    it, and since 2.15 a user of the account.
    """
    space, number = make_space(tmp_path, broken), find_bystander(broken)
    apply(space, **AT_1)
    fill(broken, count=50)
    broken[f"c-{number}"].pause()

    interrupt = Interference(MoveProgress, lambda: os.kill(os.getpid(), signal.SIGINT))
    result = apply(space, interrupt, placement={"tags": [f"az:{number}"]})

    assert result.exit_code == 130
    (step,) = result.steps
    assert (step.status, step.error) == ("done", None)
    may_cancel = server_version >= (2, 15)
    assert step.note == "the cluster continues alone. Follow it with: jsplan status. " + (
        "To cancel it: nats req '$JS.API.STREAM.CANCEL_MOVE.A' ''"
        if may_cancel
        else "Only the system account can cancel it: "
        "nats req '$JS.API.ACCOUNT.STREAM.CANCEL_MOVE.ACCOUNT.A' ''"
    )
    back = ask(broken, "$JS.API.STREAM.UPDATE.A", {"name": "A", "subjects": ["a"]} | AT_1)
    assert back["error"]["err_code"] == 10124
    if may_cancel:
        assert "error" not in ask(broken, "$JS.API.STREAM.CANCEL_MOVE.A")
        broken["c-1"].wait_until(lambda: plan_ops(space) == ["stream.update"], "plan the move", 60)
        return
    broken[f"c-{number}"].resume()
    broken["c-1"].wait_until(
        lambda: find_servers(broken, "A") == (f"c-{number}-server", []), "move", 60
    )
    assert not space.plan().steps


@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_move_to_a_server_that_does_not_answer(broken: Sandbox, tmp_path: Path) -> None:
    """A move that cannot end is named with its cause; cancelled, the next plan has it again."""
    space, number = make_space(tmp_path, broken), find_bystander(broken)
    apply(space, **AT_1)
    fill(broken, count=50)
    broken[f"c-{number}"].pause()

    result = apply(space, placement={"tags": [f"az:{number}"]})

    assert result.exit_code == 6
    (step,) = result.steps
    assert step.status == "failed"
    assert step.error is not None
    assert "main/stream/A is written, but the cluster does not finish: " in step.error
    assert f"c-{number}-server" in step.error
    cancelled = ask(broken, "$JS.API.ACCOUNT.STREAM.CANCEL_MOVE.A.A", {}, account="SYS")
    assert "error" not in cancelled
    broken[f"c-{number}"].resume()
    broken["c-1"].wait_until(lambda: find_servers(broken, "A") == ("c-1-server", []), "return", 60)
    broken["c-1"].wait_until(lambda: plan_ops(space) == ["stream.update"], "plan the move", 60)


@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_server_that_is_down(
    broken: Sandbox, tmp_path: Path, server_version: tuple[int, int, int]
) -> None:
    """A move to it is refused at once; a scaling ends, and names what remains.

    Up to 2.11 a scaling is refused too.
    """
    space, number = make_space(tmp_path, broken), find_bystander(broken)
    apply(space, **AT_1)
    fill(broken, count=50)
    broken[f"c-{number}"].stop()

    refused = apply(space, placement={"tags": [f"az:{number}"]})
    nowhere = apply(space, placement={"tags": ["az:9"]})
    scaled = apply(space, num_replicas=3)
    if server_version >= (2, 12):
        three = ("c-1-server", [f"c-{5 - number}-server"])
        broken["c-1"].wait_until(lambda: find_servers(broken, "A") == three, "be a replica", 30)
    alone = apply(space)

    assert "no suitable peers for placement" in (refused.steps[0].error or "")
    assert "tags not matched ['az:9']" in (nowhere.steps[0].error or "")
    if server_version < (2, 12):
        assert "no suitable peers for placement" in (scaled.steps[0].error or "")
        return
    assert scaled.exit_code == 0, scaled
    assert scaled.steps[0].note == (
        f"c-{number}-server offline: 1 replica of 3 without the messages until then"
    )
    assert (alone.exit_code, alone.steps[0].note) == (0, None)
    assert find_servers(broken, "A")[1] == []


@pytest.mark.matrix
@pytest.mark.soak
@pytest.mark.timeout(240)
def test_a_server_that_dies_while_the_cluster_scales(broken: Sandbox, tmp_path: Path) -> None:
    """Up and down end all the same; a replica that remains to be filled is named, and is filled."""
    space, number = make_space(tmp_path, broken), find_bystander(broken)
    dying, other = broken[f"c-{number}"], f"c-{5 - number}-server"
    apply(space, **AT_1)
    fill(broken)

    up = apply(space, Interference(MoveProgress, dying.stop), num_replicas=3)
    broken["c-1"].wait_until(
        lambda: other in str(find_servers(broken, "A")), "show the replica", 30
    )
    dying.start()
    everywhere = sorted((other, f"c-{number}-server"))
    broken["c-1"].wait_until(lambda: find_servers(broken, "A")[1] == everywhere, "fill it", 60)
    broken["c-1"].wait_until(lambda: plan_ops(space) == [], "plan", 60)
    down = apply(space, Interference(StepStarted, dying.stop))

    assert up.exit_code == 0, up
    assert up.steps[0].note == (
        f"c-{number}-server offline: 1 replica of 3 without the messages until then"
    )
    assert (down.exit_code, down.steps[0].note) == (0, None), down
    assert find_servers(broken, "A")[1] == []
    assert ask(broken, "$JS.API.STREAM.INFO.A")["state"]["messages"] == 500
