"""A server loses its storage during a relocation: what the other side has is never deleted."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from jsplan.errors import PlanError
from tests.relocate.scene import PERMITTED, TO_HUB, TO_LEAF, Scene
from tests.relocate.test_deaths import die_before_phase
from tests.support import stream_content
from tests.support.leaf_loss import bring_back
from tests.support.process import jsplan
from tests.support.raw import streams
from tests.support.state import read_state

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import MakeHubLeaf


def lose_storage(scene: Scene, *, folder: str = "") -> None:
    """Stop the leaf, delete its storage or the folder of this name, and start it again."""
    leaf = scene.server("leaf")
    leaf.stop()
    found = [leaf.store_path] if not folder else [*leaf.store_path.rglob(folder)]
    assert found
    for path in found:
        shutil.rmtree(path)
    bring_back(scene.sandbox)


def content(scene: Scene, domain: str) -> list[stream_content.Message]:
    """Return the messages of the stream in a domain; none if there is no stream."""
    with scene.raw(domain) as raw:
        return stream_content.messages(raw, "A") if "A" in streams(raw) else []


def test_the_copy_of_a_lost_origin_is_kept(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """Plan says that the origin is gone and how to continue; the copy stays unchanged."""
    scene = Scene(tmp_path, make_hub_leaf(), TO_HUB)
    scene.reset()
    die_before_phase(scene, "copied")
    before = content(scene, "hub")
    lose_storage(scene)

    with pytest.raises(PlanError) as refused:
        scene.space.apply(allow_hazards=PERMITTED)

    (found,) = [d for d in refused.value.diagnostics if d.code == "JS495"]
    assert "leaf/stream/A was deleted or recreated outside jsplan" in found.summary
    assert "jsplan state rm hub/stream/A" in found.detail
    assert content(scene, "hub") == before
    assert len(before) == len(scene.expected)
    assert jsplan(tmp_path, "state", "rm", "hub/stream/A").code == 0
    assert read_state(tmp_path).replacements == {}


def test_the_copy_of_an_emptied_origin_is_kept(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """The server has the stream, but not its messages: apply says so, and deletes nothing."""
    scene = Scene(tmp_path, make_hub_leaf(), TO_HUB)
    scene.reset()
    die_before_phase(scene, "quiesced")
    before = content(scene, "hub")
    assert len(before) == len(scene.expected)
    lose_storage(scene, folder="msgs")
    assert content(scene, "leaf") == []

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert content(scene, "hub") == before
    assert result.exit_code == 6
    assert "lost messages. Nothing was deleted" in failed[0]


def test_the_origin_of_an_emptied_copy_is_kept(tmp_path: Path, make_hub_leaf: MakeHubLeaf) -> None:
    """The new stream lost its messages before the old one was deleted, which then stays."""
    scene = Scene(tmp_path, make_hub_leaf(), TO_LEAF)
    scene.reset()
    die_before_phase(scene, "activated")
    lose_storage(scene, folder="msgs")

    _, result = scene.space.apply(allow_hazards=PERMITTED)

    failed = [s.error or "" for s in result.steps if s.status == "failed"]
    assert result.exit_code == 6
    assert "leaf/stream/A ends at sequence 0, and had messages up to" in failed[0]
    assert content(scene, "hub") == scene.expected
    with scene.raw("leaf") as raw:
        raw.api_ok("$JS.API.STREAM.DELETE.A")
    _, again = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in again.steps if s.error] == []
    scene.require_relocated()
