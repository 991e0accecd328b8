from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.main import main
from tests.drift.conftest import STREAMS
from tests.support.schemas import validator

if TYPE_CHECKING:
    from tests.drift.conftest import WatchedSpace

#: Generous: the machine may be busy.
pytestmark = pytest.mark.timeout(180)


@pytest.mark.matrix
def test_changes_are_reported_as_they_happen(watched_space: WatchedSpace) -> None:
    """Each change is reported once, with its user, also behind the leafnode."""
    job = watched_space.write().start_job("--every", "1h")

    watched_space.change_stream("A", max_age=10**12)
    first = job.next_alert()
    assert (first["event"], first["alert"]["address"], first["alert"]["severity"]) == (
        "opened",
        "hub/stream/A",
        "destructive",
    )
    assert first["alert"]["fields"][0]["path"] == "max_age"
    assert first["by"]["user"] == "acc"
    validator("notification").validate(first)

    watched_space.change_stream("B", "leaf", max_msgs=5)
    assert job.next_alert_key() == ("opened", "changed", "leaf/stream/B")
    assert job.seen[-1]["by"]["leafnode"] is True

    consumer = watched_space.request("CONSUMER.INFO.A.C")["config"]
    watched_space.request(
        "CONSUMER.CREATE.A.C",
        {"stream_name": "A", "config": consumer | {"max_ack_pending": 7}, "action": "update"},
    )
    assert job.next_alert_key() == ("opened", "changed", "hub/consumer/A/C")

    watched_space.request("STREAM.CREATE.Z", {"name": "Z", "subjects": ["z"]})
    assert job.next_alert_key() == ("opened", "unmanaged", "hub/stream/Z")

    watched_space.request("STREAM.DELETE.B", domain="leaf")
    assert job.next_alert_key() == ("changed", "missing", "leaf/stream/B")
    assert job.seen[-1]["alert"]["id"] == job.seen[1]["alert"]["id"]

    watched_space.change_stream("A", max_age=0)
    assert job.next_alert_key() == ("resolved", "changed", "hub/stream/A")
    assert job.stop() == 0
    assert job.drain() == []


@pytest.mark.since_2_12
@pytest.mark.matrix
def test_an_apply_of_our_own_is_no_drift(watched_space: WatchedSpace) -> None:
    """An own apply reports nothing, and resolves what it repairs."""
    job = watched_space.write().start_job("--every", "1h")
    watched_space.change_stream("A", max_msgs=99)
    assert job.next_alert_key() == ("opened", "changed", "hub/stream/A")
    changed = [
        {
            "name": "A",
            "domain": "hub",
            "subjects": ["a", "a2"],
            "max_age": "1h",
            "consumers": [{"name": "C", "ack_policy": "none"}],
        },
        *({"name": f"N{n}", "domain": "hub", "subjects": [f"n{n}"]} for n in range(10)),
    ]
    allowed = (
        "DELETES_STREAM",
        "DELETES_MESSAGES",
        "LOSES_CONSUMER_POSITION",
        "DELETES_CONSUMER",
        "REMOVES_SUBJECTS",
    )
    watched_space.space.write(streams=changed, kv=[{"bucket": "K", "domain": "leaf"}])
    assert watched_space.space.apply(allow_hazards=allowed)[1].exit_code == 0
    assert job.next_alert_key() == ("resolved", "changed", "hub/stream/A")
    watched_space.space.write(streams=changed[:4])
    assert watched_space.space.apply(allow_hazards=allowed)[1].exit_code == 0

    # A change by another user: the job has checked everything that came before it.
    watched_space.change_stream("N0", max_msgs=5)
    assert job.next_alert_key() == ("opened", "changed", "hub/stream/N0")
    assert job.stop() == 0
    assert job.drain() == []


def test_missed_advisories_are_found_by_schedule(watched_space: WatchedSpace) -> None:
    """A full check reports a change that no advisory announced, and reports it once."""
    watched_space.write()
    watched_space.change_stream("A", max_msgs=5)
    job = watched_space.start_job("--every", "1s", "--grace", "60s")
    assert job.next_alert_key() == ("opened", "changed", "hub/stream/A")

    checks = job.metric("jsplan_drift_checks_total")
    job.wait_until(
        lambda: job.metric('jsplan_drift_checks_total{outcome="done",scope="full"') >= checks + 2,
        "two more full checks",
    )
    assert job.drain() == []
    assert job.stop() == 0


@pytest.mark.matrix
def test_a_restart_of_the_servers_is_survived(watched_space: WatchedSpace) -> None:
    """A restart of hub and leaf is not reported, and a change during it is reported once."""
    job = watched_space.write().start_job("--every", "1s", "--grace", "60s")
    watched_space.sandbox["hub"].stop()
    leaf = watched_space.sandbox["leaf"]
    config = leaf.request("$JS.API.STREAM.INFO.B")
    assert config is not None
    leaf.request("$JS.API.STREAM.UPDATE.B", json.dumps(config["config"] | {"max_msgs": 5}).encode())
    watched_space.sandbox.start()

    assert job.next_alert_key() == ("opened", "changed", "leaf/stream/B")
    watched_space.sandbox["hub"].restart()
    watched_space.sandbox.wait_ready()
    job.wait_until(lambda: job.metric("jsplan_drift_listening") == 1, "it listens again")
    watched_space.change_stream("A", max_msgs=7)
    assert (
        job.wait_for_alert(lambda notification: notification["alert"]["address"] == "hub/stream/A")[
            "event"
        ]
        == "opened"
    )
    assert job.stop() == 0
    assert [
        n
        for n in [*job.seen, *job.drain()]
        if n["alert"]["kind"] in ("offline", "check", "missing", "unmanaged")
    ] == []


def test_a_domain_that_stays_offline_is_reported_after_the_grace(
    watched_space: WatchedSpace,
) -> None:
    """An offline leaf is reported after the grace period, and its return too."""
    job = watched_space.write().start_job("--every", "1s", "--grace", "1s")
    watched_space.sandbox["leaf"].stop()

    assert job.next_alert_key() == ("opened", "offline", "leaf")
    watched_space.sandbox.start()
    assert job.next_alert_key() == ("resolved", "offline", "leaf")
    assert job.stop() == 0
    assert job.drain() == []


def test_a_check_that_fails_for_long_is_reported(watched_space: WatchedSpace) -> None:
    """A check that cannot run is reported after the grace period, and its success too."""
    job = watched_space.write().start_job("--every", "1s", "--grace", "1s")
    watched_space.sandbox.stop()

    assert job.next_alert_key() == ("opened", "check", "workspace")
    assert job.get("/healthz")[0] == 200
    watched_space.sandbox.start()
    assert (
        job.wait_for_alert(lambda notification: notification["alert"]["kind"] == "check")["event"]
        == "resolved"
    )
    assert job.stop() == 0


def test_a_mirror_that_does_not_replicate_is_reported(watched_space: WatchedSpace) -> None:
    """A mirror without its origin is reported, and later changes elsewhere still are."""
    mirror = {"name": "M", "domain": "leaf", "mirror": {"name": "A", "domain": "hub"}}
    job = watched_space.write(streams=[*STREAMS, mirror]).start_job(
        "--every", "1s", "--grace", "60s"
    )
    config = watched_space.request("STREAM.INFO.A")["config"]
    watched_space.request("STREAM.DELETE.A")
    seen = [job.next_alert_key(), job.next_alert_key(), job.next_alert_key()]

    assert sorted(seen[:2]) == [
        ("opened", "missing", "hub/consumer/A/C"),
        ("opened", "missing", "hub/stream/A"),
    ]
    assert seen[2] == ("opened", "replication", "leaf/stream/M")
    assert "origin missing" in job.seen[2]["alert"]["summary"]
    watched_space.request("STREAM.CREATE.A", config)
    assert (
        job.wait_for_alert(lambda notification: notification["alert"]["address"] == "hub/stream/A")[
            "alert"
        ]["kind"]
        == "changed"
    )
    assert job.stop() == 0


def test_ctrl_c_ends_the_job(watched_space: WatchedSpace) -> None:
    """Ctrl-C ends the job with exit code 130."""
    job = watched_space.write().start_job("--cron", "*/10 * * * *")

    assert job.stop(signal.SIGINT) == 130


def test_health_and_metrics(watched_space: WatchedSpace) -> None:
    """The job serves health, readiness and metrics, and answers 404 to other paths."""
    job = watched_space.write().start_job("--every", "1h")
    watched_space.change_stream("A", max_age=10**12)
    job.next_alert()
    status, text = job.get("/metrics")

    assert (status, job.get("/healthz")[0], job.get("/readyz")[0], job.get("/other")[0]) == (
        200,
        200,
        200,
        404,
    )
    assert 'jsplan_drift_alerts{kind="changed",severity="destructive",workspace="test"} 1.0' in text
    assert f'address="hub/stream/A",id="{job.seen[0]["alert"]["id"]}"' in text
    assert job.metric("jsplan_drift_domain_reachable") == 2
    assert job.metric("jsplan_drift_listening") == 1


def test_new_files_are_read_by_the_next_check(watched_space: WatchedSpace) -> None:
    """The next check reads changed files; files that cannot be read change nothing."""
    watched_space.write()
    watched_space.change_stream("A", max_msgs=5)
    job = watched_space.start_job("--every", "1s", "--grace", "60s")
    assert job.next_alert_key() == ("opened", "changed", "hub/stream/A")
    good = watched_space.space.folder / "jsplan.yaml"
    text = good.read_text("utf-8")
    good.write_text("jsplan: [", "utf-8")
    job.wait_until(
        lambda: job.metric('jsplan_drift_checks_total{outcome="failed"') >= 1, "a check that fails"
    )
    good.write_text(json.dumps(json.loads(text) | {"drift": {"ignore": ["hub/stream/A"]}}), "utf-8")

    assert job.next_alert_key() == ("resolved", "changed", "hub/stream/A")
    assert job.stop() == 0


def test_wrong_options_are_refused(watched_space: WatchedSpace) -> None:
    """Contradictory or impossible schedules are wrong usage."""
    for words in (
        ["--every", "5m", "--cron", "* * * * *"],
        ["--every", "0s"],
        ["--cron", "0 0 31 2 *"],
        ["--cron", "often"],
        ["--metrics", "9464"],
    ):
        assert main(["-C", str(watched_space.space.folder), "drift", "watch", *words]) == 64
