"""Streams that source a relocated one continue at its new address without a gap or a repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.relocate.scene import PERMITTED, HubLeaf
from tests.support import stream_content

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

SOURCE: dict[str, Any] = {"name": "A", "domain": "leaf"}


class Flow(HubLeaf):
    """A stream A of the leaf that ALL in the hub sources, and that becomes B of the hub."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        super().__init__(folder, sandbox)
        self.declare({"name": "A", "domain": "leaf"}, SOURCE)
        self.space.apply()
        with self.raw("leaf") as raw:
            stream_content.fill(raw, "A", 30)
        sandbox["hub"].wait_until(lambda: len(self.sourced()) == 30, "copy all messages", 60)

    def declare(self, stream: dict[str, Any], source: dict[str, Any], **sections: Any) -> None:
        """Write the files: the stream, and ALL with a source."""
        self.space.write(
            streams=[
                stream | {"subjects": ["A.>"]},
                {"name": "ALL", "domain": "hub", "sources": [source]},
            ],
            **sections,
        )

    def declare_relocated(self, **source: Any) -> None:
        """Write the files in which the stream is in the hub."""
        self.declare(
            {"name": "B", "domain": "hub"},
            {"name": "B"} | source,
            relocate=[{"from": "leaf/stream/A", "to": "hub/stream/B"}],
        )

    def sourced(self) -> list[bytes]:
        """Return the payloads of ALL."""
        with self.raw("hub") as raw:
            return [m[3] for m in stream_content.messages(raw, "ALL")]

    def require_continued(self) -> None:
        """Check that a new message arrives, and that ALL has each message once."""
        with self.raw("hub") as raw:
            raw.request("A.1", b"after")
            wanted = [m[3] for m in stream_content.messages(raw, "B")]
        self.sandbox["hub"].wait_until(
            lambda: len(self.sourced()) >= len(wanted), "copy the new message", 60
        )
        assert self.sourced() == wanted
        assert len(wanted) == 31
        self.require_settled()


def test_a_source_continues_at_the_new_address(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """Its stream gets no message twice, and none is announced."""
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.declare_relocated()

    plan, result = flow.space.apply(allow_hazards=PERMITTED)

    assert [s.error for s in result.steps if s.error] == []
    assert [h.code for c in plan.resource_changes for h in c.hazards] == ["REMOVES_SUBJECTS"]
    assert [d.code for d in plan.diagnostics] == ["JS498", "JS425"]
    flow.require_continued()


def test_another_filter_is_refused(tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A source that takes other messages would copy all of them again."""
    flow = Flow(tmp_path, clean_hub_leaf)
    flow.declare_relocated(filter_subject="A.1")

    plan = flow.space.plan()

    assert [d.code for d in plan.diagnostics if d.severity == "error"] == ["JS495"]
    assert plan.steps == []
