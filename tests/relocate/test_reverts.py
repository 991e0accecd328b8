"""`revert` of a finished relocation says how to relocate back, and that way works."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.errors import RefusedError
from jsplan.workflows.revert import RevertOptions, revert
from tests.relocate.scene import BODY, PERMITTED, RENAMED, TO_HUB, Route, Scene
from tests.support.state import read_state
from tests.support.workspaces import RecordingObserver, approve

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


@pytest.mark.parametrize("route", [TO_HUB, RENAMED], ids=["to_hub", "renamed"])
def test_a_finished_relocation_is_relocated_back(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Nothing is deleted and created; with the files of the hint the stream is where it was."""
    scene = Scene(tmp_path, clean_hub_leaf, route)
    scene.reset()
    scene.space.apply(allow_hazards=PERMITTED)
    last = read_state(tmp_path).history[-1]["id"]

    with pytest.raises(RefusedError) as refused:
        revert(scene.space.load, RevertOptions(last), approve, RecordingObserver())

    entry = f"relocate: [{{from: {scene.target}, to: {scene.origin}}}]"
    assert entry in str(refused.value.hint)
    scene.require_relocated()
    scene.space.write(
        streams=[BODY | {"domain": scene.before}],
        relocate=[{"from": scene.target, "to": scene.origin}],
    )
    _, result = scene.space.apply(allow_hazards=PERMITTED)
    assert [s.error for s in result.steps if s.error] == []
    scene.require_restored()
