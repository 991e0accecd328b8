"""kill -9 of the real program at each boundary of a relocation; the next apply ends it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from tests.relocate.killed_scene import (
    ALLOWED,
    Killed,
    KilledAccounts,
    KilledBucket,
    KilledQueue,
    KilledScene,
    KilledSnapshot,
    compares,
)
from tests.relocate.scene import RENAMED, TO_HUB
from tests.support.kill_proxy import KillPoint
from tests.support.process import start_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox

KINDS = ("to_hub", "renamed", "snapshot", "bucket", "workqueue", "interest", "account")
#: Boundaries of each kind that `make test` tries.
SAMPLE = 1
#: Messages of a stream that is killed in the middle of its copy.
MANY = 40_000


@pytest.fixture(params=KINDS)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, clean_hub_leaf: Sandbox
) -> Iterator[Killed]:
    """A stream to another domain or account or with a new name, a bucket, or a queue."""
    match request.param:
        case "snapshot":
            yield KilledSnapshot(tmp_path, clean_hub_leaf)
        case "bucket":
            yield KilledBucket(tmp_path, clean_hub_leaf)
        case "account":
            accounts = KilledAccounts(tmp_path)
            yield accounts
            accounts.sandbox.close()
        case "workqueue" | "interest":
            yield KilledQueue(tmp_path, clean_hub_leaf, request.param)
        case name:
            route = TO_HUB if name == "to_hub" else RENAMED
            yield KilledScene(tmp_path, clean_hub_leaf, route)


@pytest.mark.timeout(180)
def test_killed_at_some_boundaries(scene: Killed, request: pytest.FixtureRequest) -> None:
    """After a kill at a few boundaries one more apply ends the relocation without loss."""
    points = scene.kill_points()
    for point in random.Random(request.node.name).sample(points, SAMPLE):
        scene.reset()
        scene.apply_in_process(point)
        assert scene.killed, point
        scene.require_ended()


@pytest.mark.soak
@pytest.mark.timeout(2400)
def test_killed_at_every_boundary(scene: Killed) -> None:
    """The same at every boundary."""
    for point in scene.kill_points():
        scene.reset()
        scene.apply_in_process(point)
        scene.require_ended()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("copied", [1, MANY // 4, MANY // 2])
def test_killed_in_the_middle_of_the_copy(
    copied: int, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The mirror continues to copy, and the next apply continues with it."""
    scene = KilledScene(tmp_path, clean_hub_leaf, TO_HUB, count=MANY)
    scene.reset()
    process = start_process(scene.space.folder, "apply", "-y", *ALLOWED)
    with scene.raw("hub") as raw:
        while scene.count_messages(raw, "A") < copied:
            assert process.poll() is None
    process.kill()
    process.communicate(timeout=30)

    scene.require_ended()


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_killed_in_the_middle_of_a_comparison(
    share: float, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """The next apply compares the rest, and does not begin the copy again."""
    scene = KilledScene(tmp_path, clean_hub_leaf, TO_HUB, count=MANY)
    scene.reset()
    reads = sum(map(compares, scene.apply_in_process(None)))
    scene.require_relocated()
    scene.reset()

    scene.apply_in_process(KillPoint(int(reads * share), "before its answer", compares))

    assert scene.killed
    scene.require_ended()
