"""The state is lost, or put back from earlier, after an apply died that replaces a stream."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import PlanError
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.applying.consumer_helpers import fill, pull
from tests.support.raw import Raw, delete_all_streams, streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.support.workspaces import Space

pytestmark = pytest.mark.since_2_12
ALLOW = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES")
BODY = {
    "name": "A",
    "domain": "main",
    "subjects": ["a.>"],
    "lifecycle": {"on_replace": "preserve"},
    "consumers": [{"name": "C", "ack_policy": "explicit"}],
}


def begin(space: Space, raw: Raw, boundary: int, *, other: str = "", **sections: Any) -> bool:
    """Replace a stream of which C has finished two messages; return True if apply died.

    `other` is a consumer of another client.
    """
    delete_all_streams(raw)
    shutil.rmtree(space.folder / "state", ignore_errors=True)
    space.write(streams=[BODY]).apply()
    fill(raw, 6)
    pull(raw, "A", "C", 2, None)
    if other:
        raw.consumer("A", other)
    shutil.copytree(space.folder / "state", space.folder / "earlier", dirs_exist_ok=True)
    space.write(**({"streams": [BODY | {"storage": "memory"}]} | sections))
    with kill_after(boundary) as counter, suppress(SimulatedKill):
        space.apply(allow_hazards=ALLOW)
    return counter.died


def check(space: Space, raw: Raw) -> bool:
    """Check that the next apply loses nothing. Return True if it is refused."""
    plan = space.plan(adopt=True)
    errors = [d for d in plan.diagnostics if d.severity == "error"]
    if errors:
        assert [d.code for d in errors] == ["JS424"], errors
        assert "JSPLAN_STAGING_A_" in errors[0].summary
        staging = next(n for n in streams(raw) if n.startswith("JSPLAN_STAGING_A_"))
        assert raw.count(staging) == 6
        with pytest.raises(PlanError):
            space.apply(adopt=True, allow_hazards=ALLOW)
        return True
    _, result = space.apply(adopt=True, allow_hazards=ALLOW)
    assert result.exit_code == 0, [step.error for step in result.steps]
    assert raw.count("A") == 6
    assert pull(raw, "A", "C", 9, None) == [3, 4, 5, 6]
    return False


@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "earlier"])
@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.soak), 7])
def test_a_death_whose_record_is_lost(
    step: int, is_lost: bool, tmp_path: Path, server: Server
) -> None:
    """No consumer stays paused, and no empty stream takes the place of messages."""
    space, boundary = single_space(tmp_path, server), 1
    refused = list[int]()
    with Raw(server.url) as raw:
        while begin(space, raw, boundary):
            shutil.rmtree(space.folder / "state")
            if not is_lost:
                shutil.copytree(space.folder / "earlier", space.folder / "state")
            if check(space, raw):
                refused.append(boundary)
            boundary += step
    assert refused
    assert len(refused) < boundary // step - 1


def test_drift_names_what_is_left(tmp_path: Path, server: Server) -> None:
    """Without a record, drift lists the staging stream; with an earlier state also the pause."""
    space, found = single_space(tmp_path, server), set[str]()
    with Raw(server.url) as raw:
        for boundary in range(1, 40, 3):
            if not begin(space, raw, boundary, other="E"):
                break
            shutil.rmtree(space.folder / "state")
            shutil.copytree(space.folder / "earlier", space.folder / "state")
            drifted = drift(space.load, DriftOptions(), RecordingObserver())
            names = [name for name in streams(raw) if name.startswith("JSPLAN_STAGING_")]
            left = {item.address for item in drifted.unmanaged if "/stream/" in item.address}
            assert {f"main/stream/{name}" for name in names} == left
            found.update(item["summary"] for item in drifted.interrupted)
    assert any("C is paused: its clients get nothing" in text for text in found), found
    assert any("E is paused: its clients get nothing" in text for text in found), found


def test_a_relocation_whose_record_is_lost(tmp_path: Path, server: Server) -> None:
    """The copy that it has left is named, and it may be deleted while the origin is there."""
    space, found = single_space(tmp_path, server), set[str]()
    moved: dict[str, Any] = {
        "streams": [BODY | {"name": "B"}],
        "relocate": [{"from": "main/stream/A", "to": "main/stream/B"}],
    }
    with Raw(server.url) as raw:
        for boundary in range(1, 60, 4):
            if not begin(space, raw, boundary, **moved):
                break
            shutil.rmtree(space.folder / "state")
            shutil.copytree(space.folder / "earlier", space.folder / "state")
            errors = [d for d in space.plan().diagnostics if d.severity == "error"]
            found.update(d.summary for d in errors)
            assert {d.code for d in errors} <= {"JS495"}
            if any("is left of an interrupted apply" in d.summary for d in errors):
                assert raw.count("A") == 6
    assert any("main/stream/B is left of an interrupted apply" in text for text in found), found
