"""Streams exchange their subjects and consumers their filters, and apply dies at each write."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.address import is_parked
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.raw import NoResponders, Raw, delete_all_streams
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from collections.abc import Mapping

ALLOWED = ("REMOVES_SUBJECTS",)
#: Writes of the whole apply, at least.
WRITES = 16


def _streams(a: str, b: str, c: list[str], d: str) -> list[dict[str, Any]]:
    consumers = [
        {"name": "C", "ack_policy": "explicit", "filter_subjects": c},
        {"name": "D", "ack_policy": "explicit", "filter_subject": d},
    ]
    queue = {"name": "Q", "subjects": ["q.>"], "retention": "workqueue", "consumers": consumers}
    return [{"name": "A", "subjects": [a, "kept"]}, {"name": "B", "subjects": [b]}, queue]


BEFORE = _streams("a", "b", ["q.a", "q.c"], "q.b")
AFTER = _streams("b", "a", ["q.b", "q.c"], "q.a")


def _rejected_subjects(raw: Raw) -> list[str]:
    """Publish to each subject, and return those that no stream takes."""
    found = []
    for subject in ("a", "b", "kept"):
        try:
            raw.request(subject, b"")
        except NoResponders:
            found.append(subject)
    return found


def _require_named(left: Mapping[str, list[str]], raw: Raw) -> None:
    """Compare what drift names with what clients meet."""
    assert left.get("main/stream/A", []) + left.get("main/stream/B", []) == _rejected_subjects(raw)
    filters = {
        f"main/consumer/Q/{name}": raw.consumer_info("Q", name)["config"] for name in ("C", "D")
    }
    parked = {at for at, config in filters.items() if is_parked(config.get("filter_subject"))}
    assert parked == {at for at in left if "/consumer/" in at}


@pytest.mark.parametrize("wanted", [AFTER, BEFORE], ids=["forward", "back"])
def test_a_dead_exchange_is_named_and_ended(
    wanted: list[dict[str, Any]], space: Space, raw: Raw
) -> None:
    """Drift names what gets nothing; the next apply asks for nothing more, and ends it."""
    named = set[str]()
    died, boundary = True, 0
    while died:
        boundary += 1
        delete_all_streams(raw)
        shutil.rmtree(space.folder / "state", ignore_errors=True)
        space.write(streams=BEFORE).apply()
        space.write(streams=AFTER)
        try:
            with kill_after(boundary):
                space.apply(allow_hazards=ALLOWED)
            died = False
        except SimulatedKill:
            found = drift(space.load, DriftOptions(), RecordingObserver())
            left = {one["address"]: one["rejected"] for one in found.interrupted}
            assert found.resource_drift == []
            _require_named(left, raw)
            named |= left.keys()
            space.write(streams=wanted)
            plan, _ = space.apply(allow_hazards=ALLOWED)
            asked = [h.message for c in plan.resource_changes for h in c.hazards]
            assert not any("jsplan.staging" in text for text in asked)
        assert not space.plan().has_changes
        assert _rejected_subjects(raw) == []

    assert boundary > WRITES
    assert named == {"main/stream/A", "main/consumer/Q/C"}


def test_a_list_of_filters_replaces_a_filter_of_another_client(space: Space, raw: Raw) -> None:
    """A filter that was accepted gives way to a declared list: a consumer has one kind."""
    bare = {"name": "W", "ack_policy": "explicit"}
    stream = {"name": "S", "subjects": ["s.>"]}
    space.write(streams=[stream | {"consumers": [bare]}]).apply()
    raw.consumer("S", "W", filter_subject="s.a")
    space.apply(refresh_only=True)
    space.write(streams=[stream | {"consumers": [bare | {"filter_subjects": ["s.b", "s.c"]}]}])
    _, result = space.apply()

    assert result.exit_code == 0
    assert raw.consumer_info("S", "W")["config"]["filter_subjects"] == ["s.b", "s.c"]
