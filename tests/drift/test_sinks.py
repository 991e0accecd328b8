"""Sinks over real HTTP, real files and a real server, with retries."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.config.model import Connection
from jsplan.config.tables.settings import SINKS
from jsplan.documents.alert import Alert, AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.service.outputs import SINK_BUILDERS
from jsplan.drift.service.sinks import (
    MAX_QUEUED,
    Delivery,
    FileSink,
    SinkError,
    SubjectSink,
    Webhook,
    build_payload,
    deliver_all,
)
from jsplan.jetstream.contexts import resolve_settings
from jsplan.jetstream.publisher import Publisher
from tests.drift.conftest import STREAMS
from tests.support.http_server import Answer, HttpServer
from tests.support.raw import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer
    from tests.drift.conftest import WatchedSpace

#: Generous: the machine may be busy.
pytestmark = pytest.mark.timeout(180)

SECRET = "T0/B0/s3cr3t"


def alert_event(
    number: int, alert_id: str = "0123456789ab", says: str = "was changed"
) -> AlertEvent:
    """A notification with a number."""
    alert = Alert(alert_id, "changed", "functional", "hub/stream/A", says, ("max_age: 1y -> 1d",))
    return AlertEvent(
        f"{alert_id}.{number}",
        "opened",
        alert,
        "shop",
        "prod",
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z",
    )


def test_every_kind_of_sink_is_built() -> None:
    """Each table of sinks has a function that builds one."""
    assert SINK_BUILDERS.keys() == SINKS.keys()


class WebhookServer(HttpServer):
    """A web server that takes notifications, or answers `status` without taking them."""

    def __init__(self) -> None:
        self.status = 200
        self.taken: list[dict[str, Any]] = []
        self.headers: list[str | None] = []
        self.kinds: list[str] = []
        self.refused = 0
        super().__init__(self._take)
        self.url = f"{self.url}/{SECRET}"

    def _take(self, _method: str, _path: str, headers: dict[str, str], body: bytes) -> Answer:
        if self.status == 200:
            self.taken.append(json.loads(body))
            self.headers.append(headers.get("x-key"))
            self.kinds.append(headers["content-type"])
        else:
            self.refused += 1
        return self.status, {"Location": "http://127.0.0.1:1/"}, b""

    @property
    def ids(self) -> list[str]:
        """The ids of the notifications that it took."""
        return [body["metadata"]["event_payload"]["id"] for body in self.taken]


@pytest.fixture
def hook() -> Iterator[WebhookServer]:
    """A web server that ends with the test."""
    made = WebhookServer()
    yield made
    made.close()


async def deliver(delivery: Delivery, seconds: float = 20) -> None:
    """Run a delivery until its queue is empty."""
    task = asyncio.create_task(delivery.run())
    await deliver_all([delivery], seconds)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_webhook_has_the_form_of_slack(hook: WebhookServer) -> None:
    """Each notification is one POST in the form of Slack."""
    sink = Webhook(1, hook.url, {"X-Key": "k"})
    await sink.send([alert_event(1, says="was changed <!channel> & more"), alert_event(2)])

    assert hook.ids == ["0123456789ab.1", "0123456789ab.2"]
    assert hook.headers == ["k", "k"]
    assert set(hook.taken[0]) == {"text", "metadata"}
    assert len(build_payload(alert_event(1, says="x" * 9_000))["text"]) <= 3_000


@pytest.mark.parametrize(
    ("format_", "kind"),
    [("json", "application/json"), ("cloudevents", "application/cloudevents+json")],
)
async def test_a_webhook_for_programs(format_: str, kind: str, hook: WebhookServer) -> None:
    """A program gets the whole notification, or that as the data of a CloudEvent 1.0."""
    event = alert_event(1)

    await Webhook(1, hook.url, {}, format_).send([event])

    (taken,) = hook.taken
    assert hook.kinds == [kind]
    document = json.loads(dumps(event.to_json()))
    assert (taken["data"] if format_ == "cloudevents" else taken) == document
    if format_ == "cloudevents":
        del taken["data"]
        assert taken == {
            "specversion": "1.0",
            "id": "0123456789ab.1",
            "source": "/jsplan/shop/prod",
            "type": "jsplan.alert.opened",
            "subject": "hub/stream/A",
            "time": "2026-01-31T12:00:00Z",
            "datacontenttype": "application/json",
        }


def test_a_description_steers_no_chat() -> None:
    """Only Slack gets its escapes; elsewhere mentions, links and images are plain text."""
    orders = ("@channel", "@all", "[Sign in](https://e.example)", "![x](https://e.example)")
    says = f"max_age: 30d -> 1d & {' '.join(orders)} <!channel> [a]: https://e.example"
    event = alert_event(1, says=says)
    slack = build_payload(event, is_slack=True)["text"]
    other = build_payload(event)["text"]
    assert "30d -&gt; 1d &amp; @channel" in slack
    assert "<!channel>" not in slack
    assert "max_age: 30d -> 1d & " in other
    for order in (*orders, "<!channel>", "]:"):
        assert order not in other, order
    assert other.replace("\u2060", "") == event.text


@pytest.mark.parametrize("status", [302, 404, 429, 500])
async def test_a_webhook_that_refuses_is_a_failure_without_its_url(
    hook: WebhookServer, status: int
) -> None:
    """Any status but success is a failure, and its message does not hold the URL."""
    hook.status = status
    with pytest.raises(SinkError) as error:
        await Webhook(1, hook.url, {}).send([alert_event(1)])

    assert str(error.value) == f"webhook 1 answered {status}"


async def test_an_unreachable_webhook_is_a_failure_without_its_url(
    hook: WebhookServer,
) -> None:
    """A failure to connect does not print any part of the URL."""
    hook.close()
    messages = []
    for url in (
        hook.url,
        f"http://no-such-host.invalid/{SECRET}",
        f"http://127.0.0.1:1/{SECRET} x",
        f"file:///{SECRET}",
    ):
        with pytest.raises(SinkError) as error:
            await Webhook(1, url, {}).send([alert_event(1)])
        messages.append(str(error.value))

    assert not [
        text for text in messages if SECRET in text or "invalid/" in text or "127.0.0.1" in text
    ]


async def test_sinks_receive_everything_after_an_outage(
    hook: WebhookServer, tmp_path: Path
) -> None:
    """A webhook and a file that work again receive every notification, in order."""
    hook.status = 503
    file = tmp_path / "later" / "drift.jsonl"
    failures: list[str] = []
    both_failed = asyncio.Event()

    def record_failure(delivery: Delivery, error: str | None) -> None:
        failures.append(f"{delivery.sink.name} {error}")
        if all(one.failures >= 2 for one in deliveries):
            both_failed.set()

    deliveries = [
        Delivery(sink, record_failure) for sink in (Webhook(1, hook.url, {}), FileSink(file))
    ]
    for delivery in deliveries:
        delivery.put([alert_event(n) for n in range(25)])
    tasks = [asyncio.create_task(delivery.run()) for delivery in deliveries]
    await asyncio.wait_for(both_failed.wait(), 20)
    hook.status = 200
    file.parent.mkdir()
    await deliver_all(deliveries, 20)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    wanted = [f"0123456789ab.{n}" for n in range(25)]

    assert hook.ids == wanted
    assert [json.loads(line)["id"] for line in file.read_text("utf-8").splitlines()] == wanted
    assert [delivery.queued for delivery in deliveries] == [0, 0]
    assert any("webhook 1 answered 503" in text for text in failures)


async def test_a_cut_line_damages_no_other(tmp_path: Path) -> None:
    """After a line that was cut off, the next notification has a line of its own."""
    file = tmp_path / "drift.jsonl"
    file.write_text('{"id": "cut', "utf-8")
    await FileSink(file).send([alert_event(1)])

    assert json.loads(file.read_text("utf-8").splitlines()[1])["id"] == "0123456789ab.1"


async def test_a_subject_survives_its_server(make_server: MakeServer) -> None:
    """Notifications that an offline server missed are published later, each kept once."""
    server = make_server()
    with Raw(server.url) as raw:
        raw.create("D", subjects=["ops.drift"])
    target = resolve_settings(Connection("main", url=server.url, timeout=2_000_000_000), {})
    sink = SubjectSink("ops.drift", Publisher(target, "ops.drift"))
    delivery = Delivery(sink, lambda *_: None)
    delivery.put([alert_event(1), alert_event(2)])
    await deliver(delivery)
    await asyncio.to_thread(server.stop)
    failed = asyncio.Event()
    delivery = Delivery(sink, lambda _, error: failed.set() if error else None)
    delivery.put([alert_event(2), alert_event(3)])
    task = asyncio.create_task(delivery.run())
    await asyncio.wait_for(failed.wait(), 20)
    await asyncio.to_thread(server.start)
    await deliver_all([delivery], 20)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await sink.close()

    assert _stored(server) == 3


def _stored(server: Server) -> int:
    with Raw(server.url) as raw:
        server.wait_until(
            lambda: raw.state("D")["messages"] >= 3,
            "have three messages",
        )
        return int(raw.state("D")["messages"])


async def test_a_subject_that_may_not_be_published_is_a_failure(make_server: MakeServer) -> None:
    """A denied publish, which the server reports out of band, is a failure."""
    server = make_server(
        extra='authorization { users: [{user: any, password: any}, {user: u, password: p, permissions: {publish: {deny: ["ops.>"]}}}] }\n'
        "no_auth_user: any\n"
    )
    publisher = Publisher(
        resolve_settings(Connection("main", url=server.url, user="u", password="p"), {}),
        "ops.drift",
    )
    with pytest.raises(SinkError, match="does not permit"):
        await SubjectSink("ops.drift", publisher).send([alert_event(1)])
    await publisher.close()


class BrokenSink:
    """A sink that never works."""

    name = "never"
    batch = 1

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Fail."""
        raise SinkError(f"never any of {len(notifications)}")

    async def close(self) -> None:
        """Do nothing."""


async def test_the_queue_is_bounded() -> None:
    """The queue of a dead sink is bounded and keeps the newest notification of each alert."""
    delivery = Delivery(BrokenSink(), lambda *_: None)
    delivery.put([alert_event(0, "aaaaaaaaaaaa")])
    delivery.put([alert_event(n) for n in range(MAX_QUEUED + 50)])

    assert delivery.queued == MAX_QUEUED
    assert delivery.dropped == 51
    assert delivery._queue[0].alert.id == "aaaaaaaaaaaa"  # noqa: SLF001 - no newer one replaced it
    assert delivery._queue[-1].id == f"0123456789ab.{MAX_QUEUED + 49}"  # noqa: SLF001


def test_a_dead_sink_does_not_hold_up_the_end(
    watched_space: WatchedSpace, hook: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the job soon although one sink fails, and the loss is reported."""
    monkeypatch.setenv("HOOK", hook.url)
    hook.status = 500
    watched_space.write().space.write(
        streams=STREAMS,
        drift={"sinks": [{"webhook": {"url": "${env.HOOK}"}}, {"file": "drift.jsonl"}]},
    )
    job = watched_space.start_job("--every", "1h")
    watched_space.change_stream("A", max_msgs=5)
    job.next_alert()

    assert job.stop() == 0
    assert "webhook 1 does not have 1 notification" in job.stderr_lines[-1]
    assert len((watched_space.space.folder / "drift.jsonl").read_text("utf-8").splitlines()) == 1


def test_no_secret_is_in_any_output(
    watched_space: WatchedSpace, hook: WebhookServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passwords, hook URLs and headers appear in no output, not even after failures."""
    monkeypatch.setenv("HOOK", hook.url)
    monkeypatch.setenv("HOOK_KEY", "h3ader-k3y")
    hook.status = 500
    webhook = {"webhook": {"url": "${env.HOOK}", "headers": {"X-Key": "${env.HOOK_KEY}"}}}
    watched_space.write().space.write(
        streams=STREAMS,
        drift={
            "sinks": [webhook, {"subject": "ops.drift", "domain": "hub"}, {"file": "drift.jsonl"}]
        },
    )
    folder = watched_space.space.folder
    job = watched_space.start_job(
        "-v",
        "--every",
        "1s",
        "--grace",
        "1s",
    )
    watched_space.change_stream("A", max_age=10**12)
    assert job.next_alert_key()[0] == "opened"
    job.wait_for_line("webhook 1 answered 500; it is tried again")
    watched_space.sandbox.stop()
    assert job.wait_for_alert(lambda n: n["alert"]["kind"] == "check")["event"] == "opened"
    metrics = job.get("/metrics")[1]
    hook.status = 200
    watched_space.sandbox.start()
    job.wait_for_alert(lambda n: n["alert"]["kind"] == "check" and n["event"] == "resolved")
    job.wait_for_line("webhook 1 works again")
    assert job.stop() == 0
    everything = [
        metrics,
        *job.stderr_lines,
        json.dumps(job.seen),
        *(json.dumps(body) for body in hook.taken),
    ]
    everything.append((folder / "drift.jsonl").read_text("utf-8"))

    assert not [
        text for text in everything if SECRET in text or "h3ader" in text or "acc:acc" in text
    ]
    assert {n["id"] for n in job.seen} <= set(hook.ids)
    assert {n["id"] for n in job.seen} <= {
        json.loads(line)["id"] for line in (folder / "drift.jsonl").read_text("utf-8").splitlines()
    }
    assert 'jsplan_drift_sink_up{sink="webhook 1",workspace="test"} 0.0' in metrics


def test_what_is_unmanaged_at_the_start_is_one_notification_per_sink(
    watched_space: WatchedSpace, hook: WebhookServer, tmp_path: Path
) -> None:
    """Twelve unmanaged streams are one POST and one line; one that goes is resolved by its id."""
    watched_space.write(drift={"sinks": [{"webhook": {"url": hook.url}}, {"file": "drift.jsonl"}]})
    for number in range(12):
        name = f"U{number:02}"
        watched_space.request(f"STREAM.CREATE.{name}", {"name": name, "subjects": [name]})

    job = watched_space.start_job("--every", "1h")
    first = job.next_alert()
    watched_space.request("STREAM.DELETE.U03")
    gone = job.next_alert()
    assert job.stop() == 0

    ids = {alert["address"]: alert["id"] for alert in first["alerts"]}
    assert sorted(ids) == [f"hub/stream/U{number:02}" for number in range(12)]
    assert (gone["event"], gone["alert"]["id"]) == ("resolved", ids["hub/stream/U03"])
    lines = (watched_space.space.folder / "drift.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line)["id"] for line in lines] == [first["id"], gone["id"]]
    assert hook.ids == [first["id"], gone["id"]]
    assert "workspace has 12 unmanaged resources" in hook.taken[0]["text"]
