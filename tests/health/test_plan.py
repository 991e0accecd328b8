from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsplan.facts.replication.reading import Reading
from jsplan.workflows.drift import drift
from jsplan.workflows.options import DriftOptions
from tests.support.workspaces import Quiet, Space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.health.conftest import Land

CODE = "JS457"


@contextmanager
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[set[str]]]:
    """The further looks that are taken meanwhile: at which copies. What they ask for goes to the servers in one go."""
    taken: list[set[str]] = []
    look = Reading.look

    async def noticed(self: Reading, flows: Any, before: Any) -> Any:
        taken.append({str(flow.copy) for flow in flows})
        return await look(self, flows, before)

    with monkeypatch.context() as patch:
        patch.setattr(Reading, "look", noticed)
        yield taken


def warned(space: Space) -> dict[str | None, str]:
    """What a plan says about copies that do not follow."""
    return {d.address: d.summary for d in space.plan().diagnostics if d.code == CODE}


def test_a_plan_looks_once_and_only_where_sequences_differ(land: Land, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that have everything cost nothing; for the others there is one look, and what that proves is a warning with its line."""
    land.stream("hub", "O", 5)
    land.stream("hub", "TWICE", 5)
    space = land.space(tmp_path).write(
        streams=[
            {"name": "WELL", "domain": "leaf", "mirror": {"name": "O", "domain": "hub"}},
            {"name": "AGAIN", "domain": "leaf", "mirror": {"name": "TWICE", "domain": "hub"}},
        ]
    )
    space.apply()
    for copy in ("WELL", "AGAIN"):
        land.copied("leaf", copy, 5)

    with looks(monkeypatch) as none:
        assert (warned(space), none) == ({}, [])
    land.do("hub", "STREAM.DELETE.TWICE")
    land.stream("hub", "TWICE", 1)
    with looks(monkeypatch) as one:
        found = space.plan()

    assert one == [{"leaf/stream/AGAIN"}]
    told = [d for d in found.diagnostics if d.code == CODE]
    assert [(d.severity, d.address, d.range is not None) for d in told] == [("warning", "leaf/stream/AGAIN", True)]
    assert told[0].summary.startswith("its mirror hub/stream/TWICE is not followed: origin re-created: ")
    assert (found.errored, found.has_changes) == (False, False)


def test_somebody_answers_for_it(land: Land, tmp_path: Path) -> None:
    """A queue that is drained on purpose is said by plan and drift, until somebody mutes it; then it is listed with who does."""
    land.stream("hub", "QUEUE", 2, retention="workqueue")
    streams = [{"name": "DRAIN", "sources": [{"name": "QUEUE", "domain": "hub"}]}]
    space = land.space(tmp_path).write(streams=streams)
    space.apply(allow_hazards=("DELETES_MESSAGES",))
    land.copied("hub", "DRAIN", 2)
    loud, found = warned(space), drift(space.load, DriftOptions(), Quiet())
    mute = {"address": "hub/stream/DRAIN", "owner": "ops", "reason": "the hub does the work", "until": "2999-12-31"}
    space.write(streams=streams, drift={"mute": [mute]})
    muted, quiet = warned(space), drift(space.load, DriftOptions(), Quiet())

    assert list(loud) == ["hub/stream/DRAIN"]
    assert (found.exit_code, found.summary["unhealthy"]) == (2, 1)
    assert (muted, quiet.exit_code, quiet.summary["unhealthy"], quiet.summary["muted"]) == ({}, 0, 0, 1)


def test_a_plan_that_mends_it_does_not_complain(land: Land, tmp_path: Path) -> None:
    """Where the plan changes what is copied, what is wrong with the old source is no news."""
    land.stream("hub", "O", 1)
    space = land.space(tmp_path).write(streams=[{"name": "S", "sources": [{"name": "O", "external": {"api": "$JS.nope.API"}}]}])
    space.apply()
    assert list(warned(space)) == ["hub/stream/S"]
    space.write(streams=[{"name": "S", "sources": [{"name": "O", "domain": "hub"}]}])

    assert warned(space) == {}
    assert drift(space.load, DriftOptions(), Quiet()).replication[0]["cause"].startswith("domain unknown")
