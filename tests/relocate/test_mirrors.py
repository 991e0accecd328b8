"""Mirrors of a relocated stream: they continue at its new address, or are recreated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED, HubLeaf
from tests.support import stream_content
from tests.support.raw import streams

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

COUNT, DELETED = 30, 10
ROUTES = {"to the hub": "hub", "renamed": "leaf"}
#: What the replacement of a mirror may ask for, besides that of the relocation.
ALLOWED = (*PERMITTED, "DELETES_STREAM")


class Mirrored(HubLeaf):
    """A stream A of the leaf that COPY in the hub mirrors, and that becomes B of another domain.

    COPY still has messages that A has deleted.
    """

    def __init__(self, folder: Path, sandbox: Sandbox, domain: str) -> None:
        super().__init__(folder, sandbox)
        self.domain = domain
        self.reset()

    def reset(self) -> None:
        """Empty both domains, apply the first files, and delete the oldest messages of A."""
        self.empty()
        self.declare({"name": "A", "domain": "leaf"}, {"name": "A", "domain": "leaf"})
        self.space.apply()
        with self.raw("leaf") as raw:
            stream_content.fill(raw, "A", COUNT)
        self.wait_for(COUNT)
        with self.raw("leaf") as raw:
            raw.delete("A", *range(1, DELETED + 1))

    def declare(
        self, stream: dict[str, Any], mirror: dict[str, Any], keep: str = "refuse", **sections: Any
    ) -> None:
        """Write the files: the stream, and COPY with a mirror."""
        lifecycle = {"on_replace": keep}
        self.space.write(
            streams=[
                stream | {"subjects": ["A.>"]},
                {"name": "COPY", "domain": "hub", "mirror": mirror, "lifecycle": lifecycle},
            ],
            **sections,
        )

    def declare_relocated(self, keep: str) -> None:
        """Write the files in which the stream has its new address."""
        self.declare(
            {"name": "B", "domain": self.domain},
            {"name": "B", "domain": self.domain},
            keep,
            relocate=[{"from": "leaf/stream/A", "to": f"{self.domain}/stream/B"}],
        )

    def copied(self) -> list[tuple[int, bytes]]:
        """Return sequence and payload of each message of COPY."""
        with self.raw("hub") as raw:
            return [(m[0], m[3]) for m in stream_content.messages(raw, "COPY")]

    def wait_for(self, count: int) -> None:
        """Wait until COPY has as many messages."""
        self.sandbox["hub"].wait_until(
            lambda: len(self.copied()) >= count, "mirror the messages", 60
        )

    def require_continued(self, before: list[tuple[int, bytes]]) -> None:
        """Check that COPY has what it had and each new message once, and that nothing is left."""
        with self.raw(self.domain) as raw:
            assert b"error" not in raw.request("A.1", b"after")
        self.wait_for(len(before) + 1)
        assert self.copied() == [*before, (COUNT + 1, b"after")]
        with self.raw("leaf") as raw:
            assert streams(raw) == (["B"] if self.domain == "leaf" else [])
        self.require_settled()


@pytest.fixture(params=ROUTES)
def mirrored(request: pytest.FixtureRequest, tmp_path: Path, clean_hub_leaf: Sandbox) -> Mirrored:
    """A mirrored stream that moves to the hub, or gets another name."""
    return Mirrored(tmp_path, clean_hub_leaf, ROUTES[request.param])


@pytest.mark.matrix
def test_a_mirror_keeps_what_it_has(mirrored: Mirrored, server_version: tuple[int, ...]) -> None:
    """It continues behind its last message, also where its origin has deleted the older ones."""
    before = mirrored.copied()
    mirrored.declare_relocated("preserve")
    if server_version < (2, 15):
        plan = mirrored.space.plan()
        assert ("JS303", "hub/stream/COPY") in {(d.code, d.address) for d in plan.diagnostics}
        return

    plan, result = mirrored.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    assert [h.code for c in plan.resource_changes for h in c.hazards] == ["REMOVES_SUBJECTS"]
    assert len(before) == COUNT
    mirrored.require_continued(before)


def test_a_mirror_is_recreated(mirrored: Mirrored) -> None:
    """Without its messages it is deleted with permission, and copies what the stream has."""
    before = mirrored.copied()
    mirrored.declare_relocated("recreate")

    plan, result = mirrored.space.apply(allow_hazards=ALLOWED)

    assert [s.error for s in result.steps if s.error] == []
    codes = {h.code: h.messages for c in plan.resource_changes for h in c.hazards}
    assert codes.keys() == {"REMOVES_SUBJECTS", "DELETES_STREAM"}
    assert codes["DELETES_STREAM"] == COUNT
    mirrored.wait_for(COUNT - DELETED)
    mirrored.require_continued(before[DELETED:])


def test_a_mirror_is_not_replaced_unasked(mirrored: Mirrored) -> None:
    """The plan says that a mirror cannot change its origin, and how to let it."""
    mirrored.declare_relocated("refuse")

    plan = mirrored.space.plan()

    errors = [d for d in plan.diagnostics if d.severity == "error"]
    assert [(d.code, d.address) for d in errors] == [("JS303", "hub/stream/COPY")]
    assert "on_replace: preserve" in errors[0].detail


def test_a_mirror_that_stays_is_announced(mirrored: Mirrored) -> None:
    """A mirror that still names the old address would get nothing any more."""
    mirrored.declare(
        {"name": "B", "domain": mirrored.domain},
        {"name": "A", "domain": "leaf"},
        relocate=[{"from": "leaf/stream/A", "to": f"{mirrored.domain}/stream/B"}],
    )

    plan = mirrored.space.plan()

    found = {h.code: h.message for c in plan.resource_changes for h in c.hazards}
    assert "hub/stream/COPY" in found["BREAKS_REPLICATION"]


def test_a_mirror_of_another_stream_is_not_kept(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Only the relocated stream has the messages that its mirror has."""
    mirrored = Mirrored(tmp_path, clean_hub_leaf, "hub")
    with mirrored.raw("leaf") as raw:
        raw.create("OTHER", subjects=["other"])
    with mirrored.raw("hub") as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.COPY")
    mirrored.declare({"name": "A", "domain": "leaf"}, {"name": "OTHER", "domain": "leaf"})
    mirrored.space.apply()
    mirrored.declare_relocated("preserve")

    plan = mirrored.space.plan()

    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS303"]
