"""A leaf that is paused, stopped or emptied while a stream moves: apply says so, or ends it."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import PlanError
from tests.kills.rows import Count, Row, parametrize
from tests.kills.scene import Scene
from tests.kills.servers import hub_and_leaf
from tests.support import stream_content
from tests.support.leaf_loss import bring_back, strike_at
from tests.support.raw import streams
from tests.support.simulated_kill import SimulatedKill, kill_after, kill_before_phase

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeHubLeaf

pytestmark = pytest.mark.timeout(240)
#: Ways to lose the leaf at a request, by the method of its server, and the moment of it.
STRIKES = [(way, moment) for way in ("pause", "kill") for moment in ("before", "after")]
#: Ways to lose what the leaf has, or what is at the old address.
LOSSES = ("storage", "messages", "deleted", "recreated")
#: What an apply may have to ask for when positions and messages are lost.
LOST = ("LOSES_CONSUMER_POSITION", "DELETES_CONSUMER", "DELETES_MESSAGES")


@pytest.fixture
def scene(row: Row, tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> Scene:
    """A row with a hub and a leaf of its own, whose requests wait a second."""
    servers = hub_and_leaf(tmp_path, make_hub_leaf())
    servers.space.base["connections"]["hub"]["timeout"] = "1s"
    return Scene(row, servers)


def lose_leaf(scene: Scene, number: int, way: str, moment: str) -> None:
    """Lose the leaf at one request of an apply; the next one ends it once the leaf is back."""
    where = (number, way, moment)
    scene.reset()
    with strike_at(number, moment, getattr(scene.sandbox["leaf"], way)):
        _, result = scene.space.apply(allow_hazards=scene.row.allow)
    failed = [step.error for step in result.steps if step.error]
    assert (result.exit_code, bool(failed)) in ((0, False), (6, True)), where
    old = next(iter(scene.row.kept))
    if old.startswith("hub/") and failed and not result.interrupted:
        # Publishers do not wait for a leaf that does not answer.
        with scene.raw("hub") as raw:
            config = raw.config(old.split("/")[1])
        assert config["subjects"] == ["A.>"], where
    bring_back(scene.sandbox)
    scene.require_nothing_lost(where)
    scene.require_applied(where)
    scene.require_finished(where)


def count_requests(scene: Scene) -> int:
    """Return how many requests of a whole apply change something."""
    scene.reset()
    with strike_at(-1, "", lambda: None) as seen:
        scene.require_applied("whole")
    return len(seen)


@parametrize(lambda row: row.leaf)
def test_the_leaf_is_lost_at_some_request(scene: Scene, row: Row, count: Count) -> None:
    """Apply ends within its timeouts and says what happened, and the next one ends it."""
    dice = random.Random(f"leaf {row.use}")
    lose_leaf(scene, dice.randrange(count_requests(scene)), *dice.choice(STRIKES))
    count("leaf lost", 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("way", "moment"), STRIKES)
@parametrize(lambda row: row.leaf)
def test_the_leaf_is_lost_at_every_request(
    scene: Scene, way: str, moment: str, count: Count
) -> None:
    """The same at every request."""
    total = count_requests(scene)
    for number in range(total):
        lose_leaf(scene, number, way, moment)
    count("leaf lost", total)


def lose(scene: Scene, loss: str) -> None:
    """Lose the storage of the leaf or its messages, or the stream at the old address."""
    domain, stream = next(iter(scene.row.kept)).split("/")
    if loss in ("deleted", "recreated"):
        with scene.raw(domain) as raw:
            if stream in streams(raw):
                raw.api_ok(f"$JS.API.STREAM.DELETE.{stream}")
            if loss == "recreated" and stream not in streams(raw):
                foreign = {"name": stream, "subjects": ["foreign"]}
                raw.api_ok(f"$JS.API.STREAM.CREATE.{stream}", foreign)
        return
    leaf = scene.sandbox["leaf"]
    leaf.stop()
    for path in [leaf.store_path] if loss == "storage" else [*leaf.store_path.rglob("msgs")]:
        shutil.rmtree(path)
    bring_back(scene.sandbox)


def payloads(scene: Scene, domain: str) -> set[bytes]:
    """Return what all streams of a domain have."""
    found: set[bytes] = set()
    with scene.raw(domain) as raw:
        for stream in streams(raw):
            found |= {message[3] for message in stream_content.messages(raw, stream)}
    return found


def require_said_or_ended(scene: Scene, phase: str, loss: str) -> None:
    """Check that one more apply ends it, or names what is lost; the hub has what it had."""
    where = (phase, loss)
    kept = payloads(scene, "hub")
    try:
        plan, result = scene.space.apply(allow_hazards=(*scene.row.allow, *LOST))
    except PlanError as refused:
        said = [d.summary + d.detail for d in refused.diagnostics]
        ended = False
    else:
        said = [step.error or "" for step in result.steps]
        said += [deferred.reason for deferred in plan.deferred]
        ended = result.exit_code == 0 and not plan.deferred
    if not ended:
        # The old stream or the copy is named; nothing of the other side is deleted.
        assert any("stream/A" in text or "--reinstalled leaf" in text for text in said), where
        assert payloads(scene, "hub") >= kept, where
        return
    assert payloads(scene, "hub") | payloads(scene, "leaf") >= kept, where
    if loss == "recreated":
        domain, stream = next(iter(scene.row.kept)).split("/")
        with scene.raw(domain) as raw:
            config = raw.config(stream)
            assert config["subjects"] == ["foreign"]
            raw.api_ok(f"$JS.API.STREAM.DELETE.{stream}")
    scene.require_clean(scene.row.after, where)
    scene.require_flowing(where)


def try_loss(scene: Scene, phase: str, loss: str) -> None:
    """Die before the phase is recorded, lose something, and apply again."""
    scene.reset()
    with kill_before_phase(phase), suppress(SimulatedKill):
        scene.apply()
    lose(scene, loss)
    require_said_or_ended(scene, phase, loss)


def recorded_phases(scene: Scene) -> list[str]:
    """Return the phases that a whole apply records."""
    scene.reset()
    with kill_after() as counter:
        scene.require_applied("whole")
    return counter.phases


@parametrize(lambda row: row.leaf)
def test_a_loss_before_some_phase(scene: Scene, row: Row, count: Count) -> None:
    """A server without its storage, and an origin that another client deletes, delete no copy."""
    pairs = [(phase, loss) for phase in recorded_phases(scene) for loss in LOSSES]
    for phase, loss in random.Random(f"loss {row.use}").sample(pairs, 2):
        try_loss(scene, phase, loss)
    count("what it has lost", 2)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("loss", LOSSES)
@parametrize(lambda row: row.leaf)
def test_a_loss_before_every_phase(scene: Scene, loss: str, count: Count) -> None:
    """The same before every phase."""
    phases = recorded_phases(scene)
    for phase in phases:
        try_loss(scene, phase, loss)
    count("what it has lost", len(phases))
