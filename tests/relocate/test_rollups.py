"""Messages with Nats-Rollup that deleted nothing, since none were allowed when they came."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.relocate.scene import PERMITTED
from tests.support import stream_content
from tests.support.raw import Raw
from tests.support.workspaces import Space, hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

ORIGIN = {"name": "O", "domain": "hub", "subjects": ["o.>"], "allow_rollup_hdrs": True}
STREAM: dict[str, Any] = {
    "name": "S",
    "domain": "hub",
    "subjects": ["s.>"],
    "lifecycle": {"on_replace": "preserve"},
}
SOURCES = {
    "sources": [
        {"name": "O", "domain": "hub", "subject_transforms": [{"src": "o.>", "dest": "s.>"}]}
    ]
}
HAZARDS = (*PERMITTED, "BREAKS_REPLICATION")


class Rollups:
    """The stream S, in which a rollup did not delete the three messages before it."""

    def __init__(self, folder: Path, sandbox: Sandbox, mode: str) -> None:
        self.space: Space = hub_leaf_space(folder, sandbox)
        self.sandbox, self.mode = sandbox, mode
        self.space.write(streams=[ORIGIN, STREAM | SOURCES]).apply()
        hub = sandbox["hub"]
        with self.raw(hub) as raw:
            for number in range(3):
                raw.request("s.x", str(number).encode())
            raw.request("o.x", b"all", {"Nats-Rollup": "sub"})
            hub.wait_until(lambda: len(stream_content.messages(raw, "S")) == 4, "copy the rollup")
            self.before = stream_content.messages(raw, "S")

    @staticmethod
    def raw(server: Server) -> Raw:
        return Raw(server.url, server.user, server.password)

    def apply_in_place(self, **fields: Any) -> None:
        """Update the stream where it is."""
        self.space.write(streams=[ORIGIN, STREAM | fields]).apply(allow_hazards=HAZARDS)

    def move(self, **fields: Any) -> list[str]:
        """Relocate or replace the stream; return the error of its first step."""
        if self.mode == "relocate":
            moved = [{"from": "hub/stream/S", "to": "leaf/stream/S"}]
            self.space.write(streams=[ORIGIN, STREAM | fields | {"domain": "leaf"}], relocate=moved)
        else:
            self.space.write(streams=[ORIGIN, STREAM | fields | {"storage": "memory"}])
        _, result = self.space.apply(allow_hazards=HAZARDS)
        return [step.error for step in result.steps if step.error][:1]

    def content(self) -> list[stream_content.Message]:
        """Return the messages where the stream should be now."""
        server = self.sandbox["leaf" if self.mode == "relocate" else "hub"]
        with self.raw(server) as raw:
            return stream_content.messages(raw, "S")


@pytest.fixture(params=["relocate", "preserve"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, clean_hub_leaf: Sandbox) -> Rollups:
    return Rollups(tmp_path, clean_hub_leaf, request.param)


@pytest.mark.parametrize(
    "fields",
    [SOURCES | {"allow_rollup_hdrs": True}, SOURCES, {}],
    ids=["allowed-now", "never-allowed", "without-sources"],
)
def test_what_they_did_not_delete_comes_along(scene: Rollups, fields: dict[str, Any]) -> None:
    """A stream that allows none is mirrored without; one with sources is copied by a snapshot."""
    scene.apply_in_place(**fields)

    assert scene.move(**fields) == []
    assert scene.content() == scene.before
    assert not scene.space.plan().has_changes


def test_what_no_plan_can_see_is_explained_before_publishers_wait(scene: Rollups) -> None:
    """Without sources nothing shows it. The comparison names it, and the printed way works."""
    scene.apply_in_place(allow_rollup_hdrs=True)

    (error,) = scene.move(allow_rollup_hdrs=True)

    assert "lacks sequence 1 of hub/stream/S: message 4 has Nats-Rollup" in error
    assert "Apply allow_rollup_hdrs: false to hub/stream/S first" in error
    assert "The copy was deleted; plan again to repeat it; the stream was not touched" in error
    scene.apply_in_place(allow_rollup_hdrs=False)
    assert scene.move(allow_rollup_hdrs=True) == []
    assert scene.content() == scene.before
