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

#: Generous: the machine may be busy.
pytestmark = pytest.mark.timeout(180)


def run_drift(watched_space: WatchedSpace, **settings: Any) -> Drift:
    """Run `jsplan drift` with these settings of `drift:`."""
    watched_space.space.write(streams=STREAMS, drift=settings)
    return drift(watched_space.space.load, DriftOptions(), RecordingObserver())


def mute(address: str, until: str, *fields: str) -> dict[str, Any]:
    """A mute, as the files have it."""
    return {
        "address": address,
        "owner": "ops",
        "reason": "load test",
        "until": until,
        "fields": list(fields),
    }


def test_severities(watched_space: WatchedSpace) -> None:
    """Severity follows from what a change does: delete, change behaviour, or only inform."""
    queue = {"name": "Q", "domain": "hub", "subjects": ["q"], "retention": "workqueue"}
    watched_space.write(streams=[*STREAMS, queue])
    watched_space.change_stream("A", max_age=10**12)
    watched_space.change_stream("Q", duplicate_window=10**10)
    watched_space.change_stream("B", "leaf", description="hello")
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    consumer = {"name": "T", "durable_name": "T", "ack_policy": "explicit"}
    watched_space.request("CONSUMER.CREATE.Q.T", {"stream_name": "Q", "config": consumer})
    watched_space.request(
        "CONSUMER.CREATE.A.E",
        {"stream_name": "A", "config": {"name": "E", "inactive_threshold": 10**12}},
    )
    result = drift(watched_space.space.load, DriftOptions(), RecordingObserver())

    assert {r.address: r.severity for r in result.resource_drift} == {
        "hub/stream/A": "destructive",
        "hub/stream/Q": "functional",
        "leaf/stream/B": "cosmetic",
    }
    assert {u.address: (u.severity, u.ephemeral) for u in result.unmanaged} == {
        "hub/consumer/A/E": ("cosmetic", True),
        "hub/consumer/Q/T": ("functional", False),
        "hub/stream/Z": ("cosmetic", False),
    }


def test_a_mute_holds_until_its_date(watched_space: WatchedSpace) -> None:
    """A muted finding has owner, reason and end, and is reported again after that date."""
    watched_space.write()
    watched_space.change_stream("A", max_age=10**12)
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    muted = run_drift(
        watched_space,
        mute=[mute("hub/stream/A", "2999-12-31", "max_age"), mute("hub/stream/Z", "2999-12-31")],
    )
    other = run_drift(watched_space, mute=[mute("hub/stream/A", "2999-12-31", "max_msgs")])
    over = run_drift(
        watched_space,
        mute=[mute("hub/stream/A", "2020-01-01", "max_age"), mute("leaf/**", "2020-01-01")],
    )

    assert (muted.exit_code, muted.summary["muted"], muted.summary["unmanaged"]) == (0, 2, 0)
    assert [
        (m["kind"], m["severity"], m["owner"], m["reason"], m["until"]) for m in muted.mutes
    ] == [
        ("changed", "destructive", "ops", "load test", "2999-12-31"),
        ("unmanaged", "cosmetic", "ops", "load test", "2999-12-31"),
    ]
    assert muted.diagnostics == []
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


def test_ignored_resources_are_neither_drift_nor_unmanaged(watched_space: WatchedSpace) -> None:
    """Resources that match `ignore` are not checked, managed or not."""
    watched_space.write()
    watched_space.change_stream("A", max_age=10**12)
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    result = run_drift(watched_space, ignore=["hub/stream/*"])

    assert (result.exit_code, result.resource_drift, result.unmanaged) == (0, [], [])


def test_nothing_is_written(watched_space: WatchedSpace) -> None:
    """The job and `jsplan drift` send only reading requests, by the audit of the servers."""
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
    """The exit code is 2 for findings of `--fail-on`, and 0 otherwise."""
    watched_space.write()
    folder = watched_space.space.folder
    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    arguments = ["-C", str(folder), "drift"]
    codes = [main(arguments), main([*arguments, "--fail-on", "unmanaged", "--format", "junit"])]
    watched_space.change_stream("A", max_age=10**12)
    codes += [main([*arguments, "--format", "github"]), main([*arguments, "--fail-on", "none"])]

    assert codes == [0, 2, 2, 0]
