"""A sealed stream takes no messages: it moves by a snapshot, and nothing is quiesced."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import BODY, PERMITTED, RENAMED, TO_HUB, Route, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.relocate.test_failures import at_first_request
from tests.relocate.test_plans import require_refused
from tests.support import stream_content
from tests.support.raw import streams
from tests.support.refused_request import refuse_request
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.state import read_state
from tests.support.workspaces import left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

SEALED: dict[str, Any] = {
    "name": "A",
    "subjects": ["A.>"],
    "sealed": True,
    "consumers": BODY["consumers"],
}


class Sealed(Scene):
    """A stream that is sealed once it has its messages."""

    body = SEALED

    def __init__(self, folder: Path, sandbox: Sandbox, route: Route = TO_HUB) -> None:
        super().__init__(folder, sandbox, route)

    def declare_before(self) -> None:
        """Write the files in which it is not sealed yet."""
        self.space.write(streams=[SEALED | {"domain": self.before, "sealed": False}])

    def work(self, raw: Any) -> None:
        """Let consumers take some messages, delete the last one, and seal the stream."""
        super().work(raw)
        self.declare_sealed()
        self.space.apply(allow_hazards=("IRREVERSIBLE",))
        assert raw.config("A")["sealed"]

    def declare_sealed(self) -> None:
        """Write the files in which it is sealed at its old address."""
        self.space.write(streams=[SEALED | {"domain": self.before}])


@pytest.fixture
def sealed(tmp_path: Path, clean_hub_leaf: Sandbox) -> Sealed:
    """A sealed stream of the leaf that moves to the hub."""
    made = Sealed(tmp_path, clean_hub_leaf)
    made.reset()
    return made


def require_sealed(scene: Sealed) -> None:
    """Check that the stream has moved and is sealed."""
    scene.require_relocated()
    with scene.raw("hub") as raw:
        assert raw.config("A")["sealed"]
        assert b'"error"' in raw.request("A.1", b"more")[1]


@pytest.mark.matrix
def test_a_sealed_stream_moves(sealed: Sealed) -> None:
    """No publisher waits for it, so no permission is needed; it is sealed at its new address."""
    plan, result = sealed.space.apply()

    assert [d.summary for d in plan.diagnostics if d.severity == "error"] == []
    assert [s.error for s in result.steps if s.error] == []
    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    (note,) = [d.summary for d in plan.diagnostics if d.code == "JS498"]
    assert note.startswith("is copied by a snapshot. No publisher waits")
    assert [s.request for s in plan.steps if s.op == "transfer.quiesce"] == [None]
    require_sealed(sealed)


def test_a_death_at_some_writes(sealed: Sealed) -> None:
    """After a death at some writes one more apply ends the relocation, without loss."""
    die_at_each(sealed, step=15)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_death_at_every_write(sealed: Sealed) -> None:
    """The same for every write."""
    die_at_each(sealed, step=1)


def die_at_each(sealed: Sealed, step: int) -> None:
    """Let an apply die after each so many writes, and apply once more."""
    with kill_after() as counter:
        sealed.space.apply()
    require_sealed(sealed)
    for point in range(2, counter.done, step):
        sealed.reset()
        with kill_after(point), suppress(SimulatedKill):
            sealed.space.apply()
        sealed.require_nothing_lost()
        _, result = sealed.space.apply()
        assert [s.error for s in result.steps if s.error] == [], point
        require_sealed(sealed)


@pytest.mark.parametrize("phase", ["quiesced", "copied", "activating"])
def test_the_old_files_delete_the_copy(phase: str, sealed: Sealed) -> None:
    """With the old declaration the next apply deletes the copy, and writes nothing else."""
    die_before_phase(sealed, phase)
    assert [d.code for d in sealed.space.plan().diagnostics if d.code == "JS496"] == ["JS496"]

    sealed.declare_sealed()
    _, result = sealed.space.apply()

    assert [s.error for s in result.steps if s.error] == []
    with sealed.raw("leaf") as raw:
        assert stream_content.messages(raw, "A") == sealed.expected
        assert raw.config("A")["subjects"] == ["A.>"]
    with sealed.raw("hub") as raw:
        assert streams(raw) == []
    assert read_state(sealed.space.folder).replacements == {}
    assert left_to_do(sealed.space.plan()) == []


def test_a_refused_activation_leaves_the_origin(sealed: Sealed) -> None:
    """The copy is deleted, the origin was not changed, and the next apply copies again."""
    with refuse_request("STREAM.UPDATE.A", 1):
        _, result = sealed.space.apply()

    (failed,) = [s.error or "" for s in result.steps if s.status == "failed"]
    assert failed.endswith("the origin is unchanged, and nothing of it is lost")
    with sealed.raw("hub") as raw:
        assert streams(raw) == []
    _, again = sealed.space.apply()
    assert [s.error for s in again.steps if s.error] == []
    require_sealed(sealed)


def test_a_copy_that_lacks_a_message_is_made_again(sealed: Sealed) -> None:
    """It is not activated, and not taken by the next apply."""

    def delete_one() -> None:
        with sealed.raw("hub") as raw:
            if "A" in streams(raw):
                raw.delete("A", 17)

    die_before_phase(sealed, "activating")
    with at_first_request("STREAM.INFO.A", "hub", delete_one):
        _, result = sealed.space.apply()

    assert result.exit_code == 6
    _, again = sealed.space.apply()
    assert [s.error for s in again.steps if s.error] == []
    require_sealed(sealed)


def test_another_name_is_refused(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A sealed stream keeps its subjects, which the new one needs."""
    scene = Sealed(tmp_path, clean_hub_leaf, RENAMED)
    scene.reset()

    require_refused(scene, "leaf/stream/A is sealed, so it keeps its subjects", "jsplan backup")


def test_both_sides_are_sealed(sealed: Sealed) -> None:
    """A relocation does not unseal a stream; a target is sealed in an earlier or later plan."""
    sealed.declare_after(sealed=False)

    require_refused(sealed, "only one side is sealed", "Declare both alike.")


def test_a_sealed_work_queue_is_refused(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Workers still empty it, and from a sealed copy nothing can be deleted."""
    scene = Sealed(tmp_path, clean_hub_leaf)
    queue = {"name": "A", "subjects": ["A.>"], "retention": "workqueue", "domain": "leaf"}
    scene.space.write(streams=[queue]).apply()
    scene.space.write(streams=[queue | {"sealed": True}]).apply(allow_hazards=("IRREVERSIBLE",))
    scene.space.write(
        streams=[queue | {"sealed": True, "domain": "hub"}],
        relocate=[{"from": "leaf/stream/A", "to": "hub/stream/A"}],
    )

    require_refused(scene, "leaf/stream/A is sealed, and its workers still empty it")


def test_what_is_allowed_is_not_more(sealed: Sealed) -> None:
    """The messages that workers have now are announced with their number, as of other streams."""
    with sealed.raw("leaf") as raw:
        raw.pull("A", "C", 3)

    plan, result = sealed.space.apply(allow_hazards=PERMITTED)

    found = {h.code: h.messages for c in plan.resource_changes for h in c.hazards}
    assert (found, result.exit_code) == ({"DUPLICATES_MESSAGES": 3}, 0)
