"""Apply dies at a boundary of each use of `cases.yaml`; the next one ends it without loss.

A boundary is a line of the journal, or a request that changes something: before it is sent, or
before its answer is read. A death is simulated, or it is `kill -9` of the program. `make test` tries
a few boundaries of each row, the same in each run, and `make soak` all. How to add a row is written
in `cases.yaml`.
"""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import PlanError, RefusedError
from tests.kills.rows import Count, Row, parametrize
from tests.kills.scene import LONG, SHORT, Scene
from tests.kills.servers import open_servers
from tests.support.kill_proxy import KillPoint, KillProxy, writes
from tests.support.process import start_process
from tests.support.simulated_kill import SimulatedKill, kill_after, kill_before_phase

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(240)


@pytest.fixture
def scene(row: Row, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """A row with its servers."""
    backend = getattr(request, "param", "local")
    for servers in open_servers(row.servers, tmp_path, request):
        yield Scene(row, servers, backend)


def choose(points: Iterable[int], sample: int, seed: str) -> list[int]:
    """Return a few of the boundaries, the same in each run."""
    every = list(points)
    return sorted(random.Random(seed).sample(every, min(sample, len(every))))


def apply_whole(scene: Scene) -> tuple[int, list[str]]:
    """Play the row without a death; return the number of boundaries and the recorded phases."""
    scene.reset()
    with kill_after() as counter:
        scene.require_applied("whole")
    scene.require_finished("whole")
    assert counter.done > 5
    return counter.done, counter.phases


def die(scene: Scene, boundary: int) -> bool:
    """Prepare the row and die at the boundary; return False where the apply ended before.

    Not each run writes the same number of lines: the identity of a server is not always one.
    """
    scene.reset()
    with kill_after(boundary) as counter, suppress(SimulatedKill):
        scene.apply()
    return counter.died


def try_boundaries(scene: Scene, boundaries: Iterable[int]) -> int:
    """Die at each boundary and apply again; return the number of deaths."""
    deaths = 0
    for boundary in boundaries:
        deaths += die(scene, boundary)
        scene.require_nothing_lost(boundary)
        scene.require_applied(boundary)
        scene.require_finished(boundary)
    return deaths


@pytest.mark.matrix
@parametrize(lambda row: row.sample > 0)
def test_death_at_some_boundaries(scene: Scene, row: Row, count: Count) -> None:
    """One more apply ends it, without a loss and without another permission."""
    total, _ = apply_whole(scene)
    deaths = try_boundaries(scene, choose(range(1, total), row.sample, row.use))
    assert deaths
    count("simulated", deaths)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda _: True)
def test_death_at_every_boundary(scene: Scene, count: Count) -> None:
    """The same at every boundary."""
    total, _ = apply_whole(scene)
    count("simulated", try_boundaries(scene, range(1, total)))


def try_phases(scene: Scene) -> int:
    """Die before each phase of a whole apply is recorded, and apply again."""
    _, phases = apply_whole(scene)
    for phase in phases:
        scene.reset()
        with kill_before_phase(phase), pytest.raises(SimulatedKill):
            scene.apply()
        scene.require_nothing_lost(phase)
        scene.require_applied(phase)
        scene.require_finished(phase)
    return len(phases)


@pytest.mark.matrix
@parametrize(lambda row: row.phases)
def test_death_before_each_phase(scene: Scene, count: Count) -> None:
    """An apply after a death finds what is done on the servers, but not in state."""
    tried = try_phases(scene)
    assert tried > 3
    count("phases", tried)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@parametrize(lambda row: not row.phases and row.use.startswith(("keep", "move")))
def test_death_before_each_phase_of_the_others(scene: Scene, count: Count) -> None:
    """The same for the other rows of streams that keep their messages: only those have phases."""
    tried = try_phases(scene)
    assert tried > 3
    count("phases", tried)


def try_back(scene: Scene, boundaries: Iterable[int]) -> int:
    """Die at each boundary and apply the files of before; return how often that was refused.

    Until the messages have moved everything is as before. Later apply refuses it and changes
    nothing, and the files of after still end what began.
    """
    refused = 0
    for boundary in boundaries:
        die(scene, boundary)
        scene.declare(scene.row.before)
        try:
            scene.require_applied(boundary)
        except (PlanError, RefusedError):
            refused += 1
            scene.declare(scene.row.after)
            scene.require_applied(boundary)
            scene.require_finished(boundary)
        else:
            scene.require_taken_back(boundary)
    return refused


@parametrize(lambda row: row.back)
def test_the_files_of_before(scene: Scene, row: Row, count: Count) -> None:
    """They bring everything back after a death, or the plan says why not."""
    total, _ = apply_whole(scene)
    chosen = choose(range(total // 3, total), 1, f"back {row.use}")
    try_back(scene, chosen)
    count("files of before", len(chosen))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: row.back)
def test_the_files_of_before_at_every_boundary(scene: Scene, count: Count) -> None:
    """The same at every boundary, of which some are early enough."""
    total, _ = apply_whole(scene)
    assert try_back(scene, range(1, total)) < total - 1
    count("files of before", total - 1)


def changes_something(subject: str) -> bool:
    """Return True for a request that changes something, the end marker of a stream included."""
    return writes(subject) or subject.startswith("jsplan.staging.")


def reads_messages(subject: str) -> bool:
    """Return True for a request that reads messages, as a comparison does."""
    return ".DIRECT.GET." in subject or ".STREAM.MSG.GET." in subject


def apply_in_process(scene: Scene, point: KillPoint | None) -> tuple[bool, list[str]]:
    """Apply by the program; return whether it was killed at the point, and its requests."""
    url = scene.servers.url()
    with KillProxy(scene.servers.port, point) as proxy:
        scene.servers.connect(proxy.url)
        scene.declare(scene.row.after, SHORT if point else LONG)
        allowed = [part for code in scene.row.allow for part in ("--allow-hazard", code)]
        process = start_process(
            scene.space.folder, "apply", "-y", "--parallelism", str(scene.row.parallelism), *allowed
        )
        proxy.watch(process)
        _, err = process.communicate(timeout=120)
        # On a busy machine the lease of a lock may end, and not each request is sent in each run.
        assert process.returncode in ({-9, 0, 6} if point else {0}), err.decode()
        seen = list(proxy.seen)
    scene.servers.connect(url)
    scene.declare(scene.row.after)
    return process.returncode == -9, seen


def kill_points(scene: Scene) -> list[KillPoint]:
    """Return each boundary of a whole apply by the program."""
    scene.reset()
    _, seen = apply_in_process(scene, None)
    scene.require_finished("whole")
    changes, reads = (sum(map(counted, seen)) for counted in (changes_something, reads_messages))
    assert changes > 3
    points = [
        KillPoint(number, moment, changes_something)
        for number in range(changes)
        for moment in ("before it arrives", "before its answer")
    ]
    shares = sorted({reads * share // 10 for share in range(10)}) if reads else []
    return points + [KillPoint(number, "before its answer", reads_messages) for number in shares]


def try_kills(scene: Scene, points: Iterable[KillPoint]) -> int:
    """Kill the program at each point and apply again; return the number of kills."""
    kills = 0
    for point in points:
        scene.reset()
        kills += apply_in_process(scene, point)[0]
        scene.require_nothing_lost(point)
        scene.require_applied(point)
        scene.require_finished(point)
    return kills


@parametrize(lambda row: row.killed > 0 and "local" in row.backends)
def test_kill_9_at_some_boundaries(scene: Scene, row: Row, count: Count) -> None:
    """The same after the end of the real program."""
    points = kill_points(scene)
    kills = try_kills(scene, random.Random(row.use).sample(points, row.killed))
    assert kills
    count("kill -9", kills)


@parametrize(lambda row: "kv" in row.backends)
@pytest.mark.parametrize("scene", ["kv"], indirect=True)
def test_kill_9_with_the_state_in_a_bucket(scene: Scene, row: Row, count: Count) -> None:
    """The same with the state on the server."""
    points = kill_points(scene)
    kills = try_kills(scene, random.Random(f"kv {row.use}").sample(points, row.killed))
    assert kills
    count("kill -9, state in a bucket", kills)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: "local" in row.backends)
def test_kill_9_at_every_boundary(scene: Scene, count: Count) -> None:
    """The same at every boundary."""
    count("kill -9", try_kills(scene, kill_points(scene)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: "kv" in row.backends)
@pytest.mark.parametrize("scene", ["kv"], indirect=True)
def test_kill_9_at_every_boundary_of_the_bucket(scene: Scene, count: Count) -> None:
    """The same with the state on the server."""
    count("kill -9, state in a bucket", try_kills(scene, kill_points(scene)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@parametrize(lambda row: row.phases)
def test_death_with_20_000_messages(scene: Scene, row: Row, count: Count) -> None:
    """A dozen boundaries, simulated and with `kill -9`, of streams that take a while to copy."""
    scene.row = replace(row, messages=20_000)
    total, _ = apply_whole(scene)
    deaths = try_boundaries(scene, range(1, total, max(1, total // 12)))
    count("20,000 messages", deaths + try_kills(scene, kill_points(scene)[::6]))
