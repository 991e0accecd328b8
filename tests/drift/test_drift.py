from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.cli.main import main
from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.drift.conftest import STREAMS
from tests.support.api_audit import audit_requests, writes
from tests.support.process import jsplan
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from jsplan.documents.drift import Drift
    from tests.drift.conftest import WatchedSpace

#: Generous: a machine may be busy with other things.
pytestmark = pytest.mark.timeout(180)


def run_drift(watched_space: WatchedSpace, **settings: Any) -> Drift:
    """One run with these settings of `drift:`."""
    watched_space.space.write(streams=STREAMS, drift=settings)
    return drift(watched_space.space.load, DriftOptions(), RecordingObserver())


def mute(address: str, until: str, *fields: str) -> dict[str, Any]:
    """A mute as it is written."""
    return {
        "address": address,
        "owner": "ops",
        "reason": "load test",
        "until": until,
        "fields": list(fields),
    }


def test_severities(watched_space: WatchedSpace) -> None:
    """What may delete is destructive, what others notice functional, what only people read cosmetic; strangers have one too."""
    queue = {"name": "Q", "domain": "hub", "subjects": ["q"], "retention": "workqueue"}
    watched_space.write(streams=[*STREAMS, queue])
    watched_space.change_stream("A", max_age=10**12)
    watched_space.change_stream("Q", duplicate_window=10**10)
    watched_space.change_stream("B", "leaf", description="hello")
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    taker = {"name": "T", "durable_name": "T", "ack_policy": "explicit"}
    watched_space.request("CONSUMER.CREATE.Q.T", {"stream_name": "Q", "config": taker})
    watched_space.request(
        "CONSUMER.CREATE.A.E",
        {"stream_name": "A", "config": {"name": "E", "inactive_threshold": 10**12}},
    )
    found = drift(watched_space.space.load, DriftOptions(), RecordingObserver())

    assert {r.address: r.severity for r in found.resource_drift} == {
        "hub/stream/A": "destructive",
        "hub/stream/Q": "functional",
        "leaf/stream/B": "cosmetic",
    }
    assert {u.address: (u.severity, u.ephemeral) for u in found.unmanaged} == {
        "hub/consumer/A/E": ("cosmetic", True),
        "hub/consumer/Q/T": ("functional", False),
        "hub/stream/Z": ("cosmetic", False),
    }


def test_a_mute_holds_until_its_day(watched_space: WatchedSpace) -> None:
    """What is muted is counted as muted with its owner, reason and end; only for its fields, and not once it has expired."""
    watched_space.write()
    watched_space.change_stream("A", max_age=10**12)
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    held = run_drift(
        watched_space,
        mute=[mute("hub/stream/A", "2999-12-31", "max_age"), mute("hub/stream/Z", "2999-12-31")],
    )
    other = run_drift(watched_space, mute=[mute("hub/stream/A", "2999-12-31", "max_msgs")])
    over = run_drift(
        watched_space,
        mute=[mute("hub/stream/A", "2020-01-01", "max_age"), mute("leaf/**", "2020-01-01")],
    )

    assert (held.exit_code, held.summary["muted"], held.summary["unmanaged"]) == (0, 2, 0)
    assert [
        (m["kind"], m["severity"], m["owner"], m["reason"], m["until"]) for m in held.mutes
    ] == [
        ("changed", "destructive", "ops", "load test", "2999-12-31"),
        ("unmanaged", "cosmetic", "ops", "load test", "2999-12-31"),
    ]
    assert held.diagnostics == []
    assert (other.exit_code, other.summary["changed"]) == (2, 1)
    assert (over.exit_code, over.summary["changed"]) == (2, 1)
    assert [(d.code, d.severity, d.summary) for d in over.diagnostics] == [
        (
            "JS490",
            "warning",
            "the mute of hub/stream/A expired on 2020-01-01: 1 finding is reported again",
        ),
        (
            "JS490",
            "warning",
            "the mute of leaf/** expired on 2020-01-01: nothing is left that it covered",
        ),
    ]
    assert all(d.range is not None and "ops" in d.detail for d in over.diagnostics)


def test_what_is_ignored_is_neither_drift_nor_unmanaged(watched_space: WatchedSpace) -> None:
    """Ignored globs are not looked at, whoever manages them."""
    watched_space.write()
    watched_space.change_stream("A", max_age=10**12)
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    found = run_drift(watched_space, ignore=["hub/stream/*"])

    assert (found.exit_code, found.resource_drift, found.unmanaged) == (0, [], [])


def test_nothing_is_written(watched_space: WatchedSpace) -> None:
    """Whatever there is to find, the servers' own audit sees only reading requests, of drift and of the watch."""
    watched_space.write(
        drift={"sinks": [{"subject": "ops.drift", "domain": "hub"}, {"file": "drift.jsonl"}]}
    )
    watched_space.change_stream("A", max_age=10**12)
    watched_space.request("STREAM.DELETE.B", domain="leaf")
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    with audit_requests(watched_space.sandbox) as seen:
        assert jsplan(watched_space.space.folder, "drift", "--fail-on", "unmanaged").code == 2
        job = watched_space.start_job("--every", "1h")
        assert {job.next_alert_key()[1] for _ in range(3)} == {"changed", "missing", "unmanaged"}
        assert job.stop() == 0

    assert len(seen) > 20
    assert writes(seen) == []
    lines = (watched_space.space.folder / "drift.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["alert"]["address"] for line in lines} == {
        "hub/stream/A",
        "leaf/stream/B",
        "hub/stream/Z",
    }


def test_exit_codes(watched_space: WatchedSpace) -> None:
    """2 for what --fail-on names, 0 for the rest; a mute or `none` makes it 0."""
    watched_space.write()
    folder = watched_space.space.folder
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    said = ["-C", str(folder), "drift"]
    codes = [main(said), main([*said, "--fail-on", "unmanaged", "--format", "junit"])]
    watched_space.change_stream("A", max_age=10**12)
    codes += [main([*said, "--format", "github"]), main([*said, "--fail-on", "none"])]

    assert codes == [0, 2, 2, 0]
