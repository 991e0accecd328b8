from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import jsonschema
import pytest

from jsplan.cli.main import main
from jsplan.documents.schema import schemas
from tests.drift.conftest import STREAMS

if TYPE_CHECKING:
    from tests.drift.conftest import WatchedSpace

#: Generous: a machine may be busy with other things.
pytestmark = pytest.mark.timeout(180)


def schema_of_notices() -> dict[str, object]:
    """What `state/schema/notification-v1.json` says."""
    return schemas()["notification-v1.json"]


@pytest.mark.matrix
def test_changes_are_reported_as_they_happen(watched_space: WatchedSpace) -> None:
    """An update, one behind the leafnode, one of a consumer, a new stream and a deletion: each once, with who it was, and no other."""
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
    jsonschema.validate(first, schema_of_notices())

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


@pytest.mark.matrix
def test_an_apply_of_our_own_is_no_drift(watched_space: WatchedSpace) -> None:
    """Streams, consumers and buckets that the workspace itself makes, changes and deletes are never told; what it mends is resolved."""
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

    watched_space.change_stream(
        "N0", max_msgs=5
    )  # one more of somebody else: what came before it was looked at before it
    assert job.next_alert_key() == ("opened", "changed", "hub/stream/N0")
    assert job.stop() == 0
    assert job.drain() == []


def test_missed_advisories_are_found_by_schedule(watched_space: WatchedSpace) -> None:
    """A change while nothing listens is told by the full check; one that is there at the start too, and none of them twice."""
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
    """Hub and leaf are restarted while somebody changes the leaf: told once, and nothing is told about the restart."""
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
        job.wait_for_alert(lambda notice: notice["alert"]["address"] == "hub/stream/A")["event"]
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
    """A stopped leaf is told once its grace is over and its resources are not called missing; its return is told too."""
    job = watched_space.write().start_job("--every", "1s", "--grace", "1s")
    watched_space.sandbox["leaf"].stop()

    assert job.next_alert_key() == ("opened", "offline", "leaf")
    watched_space.sandbox.start()
    assert job.next_alert_key() == ("resolved", "offline", "leaf")
    assert job.stop() == 0
    assert job.drain() == []


def test_a_check_that_fails_for_long_is_reported(watched_space: WatchedSpace) -> None:
    """Without any server silence is not taken for health: that nothing can be checked is told, and that it can again."""
    job = watched_space.write().start_job("--every", "1s", "--grace", "1s")
    watched_space.sandbox.stop()

    assert job.next_alert_key() == ("opened", "check", "workspace")
    assert job.get("/healthz")[0] == 200
    watched_space.sandbox.start()
    assert (
        job.wait_for_alert(lambda notice: notice["alert"]["kind"] == "check")["event"] == "resolved"
    )
    assert job.stop() == 0


def test_a_mirror_that_does_not_replicate_is_reported(watched_space: WatchedSpace) -> None:
    """The origin of a mirror is deleted: told as what it is while changes elsewhere are still told at once; told when it follows again."""
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
        job.wait_for_alert(lambda notice: notice["alert"]["address"] == "hub/stream/A")["alert"][
            "kind"
        ]
        == "changed"
    )
    assert job.stop() == 0


def test_ctrl_c_ends_it_too(watched_space: WatchedSpace) -> None:
    """Ctrl-C is exit 130, as everywhere; the state file and the servers are as they were."""
    job = watched_space.write().start_job("--cron", "*/10 * * * *")

    assert job.stop(signal.SIGINT) == 130


def test_health_and_metrics(watched_space: WatchedSpace) -> None:
    """Ready after the first check, alive, metrics that Prometheus reads, and a readable answer to a wrong path."""
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
    """A resource that the files begin to ignore is resolved without a restart; files that cannot be read change nothing."""
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


def test_wrong_words_are_refused(watched_space: WatchedSpace) -> None:
    """Schedules that contradict each other, never come or are no schedule are wrong usage, before anything is read."""
    for words in (
        ["--every", "5m", "--cron", "* * * * *"],
        ["--every", "0s"],
        ["--cron", "0 0 31 2 *"],
        ["--cron", "often"],
        ["--metrics", "9464"],
    ):
        assert main(["-C", str(watched_space.space.folder), "drift", "watch", *words]) == 64
