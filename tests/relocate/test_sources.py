"""A stream with sources moves: each continues behind what it had copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.raw import streams
from tests.support.workspaces import left_to_do

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

ORIGINS = ("ONE", "TWO")


class Sourced(Scene):
    """The stream A sources two streams of the hub, and moves from the leaf to the hub."""

    def __init__(self, folder: Path, sandbox: Sandbox, **fields: Any) -> None:
        super().__init__(folder, sandbox, ("leaf", "hub", "A"))
        self.fields = fields

    def declare(self, domain: str, **sections: Any) -> None:
        """Write the files with the stream in this domain."""
        origins = [{"name": n, "subjects": [f"{n}.>"], "domain": "hub"} for n in ORIGINS]
        sources = [{"name": n, "domain": "hub"} for n in ORIGINS]
        body = {"name": "A", "domain": domain, "sources": sources} | self.fields
        self.space.write(streams=[*origins, body], **sections)

    def declare_before(self) -> None:
        """Write the files in which the stream is in the leaf."""
        self.declare("leaf")

    def declare_after(self, **fields: Any) -> None:
        """Write the files in which the stream is in the hub."""
        self.fields |= fields
        self.declare("hub", relocate=[{"from": "leaf/stream/A", "to": "hub/stream/A"}])

    def reset(self, **fields: Any) -> None:
        """Fill the origins, and let the stream copy them."""
        self.empty()
        self.declare_before()
        self.space.apply()
        self.publish(0)
        self.wait_for("leaf", 40)
        self.declare_after(**fields)

    def publish(self, number: int) -> None:
        """Publish twenty messages to each origin."""
        with self.raw("hub") as raw:
            for origin in ORIGINS:
                for each in range(20):
                    raw.request(f"{origin}.{each % 3}", f"{number} {each}".encode())

    def wait_for(self, domain: str, last: int) -> None:
        """Wait until the stream has stored so many messages."""
        with self.raw(domain) as raw:
            self.server(domain).wait_until(lambda: raw.state("A")["last_seq"] >= last, "copy")

    def content(self, domain: str) -> list[tuple[str, bytes]]:
        """Return the subjects and payloads of the stream, sorted."""
        with self.raw(domain) as raw:
            return sorted(stream_content.without_sequences(stream_content.messages(raw, "A")))

    def published(self, *numbers: int) -> list[tuple[str, bytes]]:
        """Return what was published with these numbers, sorted."""
        return sorted(
            (f"{origin}.{each % 3}", f"{number} {each}".encode())
            for origin in ORIGINS
            for number in numbers
            for each in range(20)
        )


def test_the_sources_continue(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Every message is there once, and no plan shows the starts of the sources."""
    scene = Sourced(tmp_path, clean_hub_leaf)
    scene.reset()

    plan, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    assert [h.code for c in plan.resource_changes for h in c.hazards] == []
    scene.publish(1)
    scene.wait_for("hub", 80)
    assert scene.content("hub") == scene.published(0, 1)
    with scene.raw("leaf") as raw:
        assert streams(raw) == []
    assert left_to_do(scene.space.plan()) == []


def test_what_was_deleted_is_not_copied_again(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A stream that was purged names no sequence any more; the server knows it."""
    scene = Sourced(tmp_path, clean_hub_leaf)
    scene.reset()
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.PURGE.A")

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    scene.publish(1)
    scene.wait_for("hub", 80)
    assert scene.content("hub") == scene.published(1)


@pytest.mark.parametrize("phase", ["quiesced", "copied", "activated"])
def test_a_death_keeps_the_positions(phase: str, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Messages that arrive at the origins meanwhile are copied once by the next apply."""
    scene = Sourced(tmp_path, clean_hub_leaf)
    scene.reset()
    die_before_phase(scene, phase)
    scene.publish(1)

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    scene.publish(2)
    scene.wait_for("hub", 120)
    assert scene.content("hub") == scene.published(0, 1, 2)
    assert left_to_do(scene.space.plan()) == []


@pytest.mark.parametrize("purged", [False, True], ids=["stored", "purged"])
def test_the_way_back_keeps_the_positions(
    purged: bool, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """With the old files the stream gets its sources back, and copies nothing again."""
    scene = Sourced(tmp_path, clean_hub_leaf)
    scene.reset()
    if purged:
        with scene.raw("leaf") as raw:
            raw.api_ok("$JS.API.STREAM.PURGE.A")
    die_before_phase(scene, "copied")
    scene.declare_before()

    _, result = scene.space.apply()

    assert [s.error for s in result.steps if s.error] == []
    scene.publish(1)
    scene.wait_for("leaf", 80)
    assert scene.content("leaf") == scene.published(*([1] if purged else [0, 1]))
    assert left_to_do(scene.space.plan()) == []


def test_a_new_source_waits(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A source that the origin has not would copy everything: that is another plan."""
    scene = Sourced(tmp_path, clean_hub_leaf)
    scene.reset(sources=[{"name": "ONE", "domain": "hub", "filter_subject": "ONE.1"}])

    found = [d for d in scene.space.plan().diagnostics if d.severity == "error"]

    assert "has no source ONE with the same filter yet" in found[0].summary
