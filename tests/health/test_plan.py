from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsplan.facts.replication.sampler import ReplicationSampler
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.support.workspaces import RecordingObserver, Space

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

    from tests.health.conftest import LinkedServers

CODE = "JS457"


@contextmanager
def record_samples(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[set[str]]]:
    """Record the downstream streams of each further round of samples."""
    taken: list[set[str]] = []
    look = ReplicationSampler.take_samples

    async def noticed(self: ReplicationSampler, flows: Any, before: Any) -> Any:
        taken.append({str(flow.downstream) for flow in flows})
        return await look(self, flows, before)

    with monkeypatch.context() as patch:
        patch.setattr(ReplicationSampler, "take_samples", noticed)
        yield taken


def replication_warnings(space: Space) -> dict[str | None, str]:
    """Return the warnings of a plan about replication that does not follow."""
    return {d.address: d.summary for d in space.plan().diagnostics if d.code == CODE}


def test_a_plan_samples_only_flows_that_lag(
    linked_servers: LinkedServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan takes a second sample only of flows that lag, and warns of what that proves."""
    linked_servers.stream("hub", "O", 5)
    linked_servers.stream("hub", "TWICE", 5)
    space = linked_servers.space(tmp_path).write(
        streams=[
            {"name": "WELL", "domain": "leaf", "mirror": {"name": "O", "domain": "hub"}},
            {"name": "AGAIN", "domain": "leaf", "mirror": {"name": "TWICE", "domain": "hub"}},
        ]
    )
    space.apply()
    for copy in ("WELL", "AGAIN"):
        linked_servers.wait_until_copied("leaf", copy, 5)

    with record_samples(monkeypatch) as none:
        assert (replication_warnings(space), none) == ({}, [])
    linked_servers.request("hub", "STREAM.DELETE.TWICE")
    linked_servers.stream("hub", "TWICE", 1)
    with record_samples(monkeypatch) as one:
        found = space.plan()

    assert one == [{"leaf/stream/AGAIN"}]
    stalled = [d for d in found.diagnostics if d.code == CODE]
    assert [(d.severity, d.address, d.range is not None) for d in stalled] == [
        ("warning", "leaf/stream/AGAIN", True)
    ]
    assert stalled[0].summary.startswith(
        "its mirror hub/stream/TWICE is not followed: origin re-created: "
    )
    assert (found.errored, found.has_changes) == (False, False)


def test_a_drained_queue_is_reported_until_muted(
    linked_servers: LinkedServers, tmp_path: Path
) -> None:
    """A work queue that a source drains is reported by plan and drift, until it is muted."""
    linked_servers.stream("hub", "QUEUE", 2, retention="workqueue")
    streams = [{"name": "DRAIN", "sources": [{"name": "QUEUE", "domain": "hub"}]}]
    space = linked_servers.space(tmp_path).write(streams=streams)
    space.apply(allow_hazards=("DELETES_MESSAGES",))
    linked_servers.wait_until_copied("hub", "DRAIN", 2)
    loud, found = (
        replication_warnings(space),
        drift(space.load, DriftOptions(), RecordingObserver()),
    )
    mute = {
        "address": "hub/stream/DRAIN",
        "owner": "ops",
        "reason": "the hub does the work",
        "until": "2999-12-31",
    }
    space.write(streams=streams, drift={"mute": [mute]})
    muted, quiet = (
        replication_warnings(space),
        drift(space.load, DriftOptions(), RecordingObserver()),
    )

    assert list(loud) == ["hub/stream/DRAIN"]
    assert (found.exit_code, found.summary["unhealthy"]) == (2, 1)
    assert (muted, quiet.exit_code, quiet.summary["unhealthy"], quiet.summary["muted"]) == (
        {},
        0,
        0,
        1,
    )


def test_a_plan_that_changes_the_source_does_not_warn(
    linked_servers: LinkedServers, tmp_path: Path
) -> None:
    """A plan that changes the source of a stream does not warn of the old one."""
    linked_servers.stream("hub", "O", 1)
    space = linked_servers.space(tmp_path).write(
        streams=[{"name": "S", "sources": [{"name": "O", "external": {"api": "$JS.nope.API"}}]}]
    )
    space.apply()
    assert list(replication_warnings(space)) == ["hub/stream/S"]
    space.write(streams=[{"name": "S", "sources": [{"name": "O", "domain": "hub"}]}])

    assert replication_warnings(space) == {}
    assert (
        drift(space.load, DriftOptions(), RecordingObserver())
        .replication[0]["cause"]
        .startswith("domain unknown")
    )
