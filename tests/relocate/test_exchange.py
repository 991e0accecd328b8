"""A stream and its mirror exchange their roles, by a relocation whose copy is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED, TO_HUB, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


class Exchanged(Scene):
    """The stream A of the leaf has a mirror of its name in the hub, which becomes the stream."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox, TO_HUB)
        #: Fields of the mirror in the hub.
        self.mirror: dict[str, Any] = {}

    def declare(self, first: str, second: str, **sections: Any) -> None:
        """Write the files with the stream in `first`, and its mirror in `second`."""
        mirror = {"name": "A", "domain": second, "mirror": {"name": "A", "domain": first}}
        self.space.write(streams=[self.body | {"domain": first}, mirror | self.mirror], **sections)

    def declare_before(self) -> None:
        """Write the files in which the leaf has the stream."""
        self.declare("leaf", "hub")

    def declare_after(self, **fields: Any) -> None:
        """Write the files in which the hub has the stream, and the leaf its mirror."""
        assert not fields
        self.declare("hub", "leaf", relocate=[{"from": self.origin, "to": self.target}])

    def reset(self, **fields: Any) -> None:
        """Fill the stream, and wait for its mirror, which keeps what the stream has deleted."""
        super().reset(**fields)
        self.wait_for("hub", len(self.expected))
        with self.raw("hub") as raw:
            for seq in (self.count // 2, self.count):
                raw.api("$JS.API.STREAM.MSG.DELETE.A", {"seq": seq})

    def wait_for(self, domain: str, count: int) -> None:
        """Wait until the stream of a domain has so many messages."""
        with self.raw(domain) as raw:
            self.server(domain).wait_until(
                lambda: self.count_stored(raw) >= count, f"have {count} messages"
            )

    def count_stored(self, raw: Any) -> int:
        """Return how many messages A has."""
        return int(raw.state("A")["messages"])

    def require_exchanged(self) -> None:
        """Check messages, positions and roles, and that the new mirror follows."""
        with self.raw("hub") as raw:
            assert stream_content.messages(raw, "A") == self.expected
            assert stream_content.unread(raw, "A") == self.unread
            raw.request("A.after", b"after")
        self.wait_for("leaf", len(self.expected) + 1)
        with self.raw("leaf") as raw:
            config = raw.config("A")
        assert (config["mirror"]["name"], config.get("subjects")) == ("A", None)
        again = self.space.plan()
        assert ([s.title for s in again.steps], again.errored) == ([], False)


@pytest.fixture
def scene(tmp_path: Path, clean_hub_leaf: Sandbox) -> Exchanged:
    """The stream, its mirror, and the files that exchange them."""
    made = Exchanged(tmp_path, clean_hub_leaf)
    made.reset()
    return made


def test_a_stream_and_its_mirror_exchange_roles(scene: Exchanged) -> None:
    """Nothing is copied first, and the consumers of the stream continue at the new one."""
    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    codes = {h.code for c in plan.resource_changes for h in c.hazards}
    assert codes <= set(PERMITTED)
    note = next(d.summary for d in plan.diagnostics if d.code == "JS498")
    assert note == "is a mirror of leaf/stream/A already, and becomes the stream"
    assert plan.summary["replace_deletes"] == 0
    scene.require_exchanged()


@pytest.mark.parametrize("phase", ["mirrored", "quiesced", "copied", "activating", "activated"])
def test_a_death_on_the_way(phase: str, scene: Exchanged) -> None:
    """The next apply ends the exchange."""
    die_before_phase(scene, phase)

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    scene.require_exchanged()


def test_a_mirror_that_keeps_more_loses_nothing(scene: Exchanged) -> None:
    """Messages that only the mirror still has stay in the stream that it becomes."""
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.PURGE.A", {"keep": 5})

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    with scene.raw("hub") as raw:
        assert stream_content.messages(raw, "A") == scene.expected


def test_a_mirror_that_lacks_messages_stays_one(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """It is compared before publishers have to wait, and neither side changes."""
    scene = Exchanged(tmp_path, clean_hub_leaf)
    scene.mirror = {"max_msgs": 20}
    scene.expected = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scene, "wait_for", lambda *_: None)
        scene.reset()
    scene.mirror = {}
    with scene.raw("hub") as raw:
        scene.server("hub").wait_until(
            lambda: 0 < scene.count_stored(raw) <= 20, "have the newest messages"
        )

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert result.exit_code == 6
    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert "hub/stream/A lacks sequence 1 of leaf/stream/A" in failed[0]
    with scene.raw("leaf") as raw:
        assert stream_content.messages(raw, "A") == scene.expected
    with scene.raw("hub") as raw:
        assert raw.config("A")["mirror"]["name"] == "A"
