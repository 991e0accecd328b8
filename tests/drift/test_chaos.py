"""A drift job while servers fail, others change things and the workspace applies."""

from __future__ import annotations

import json
import random
import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.options import DriftOptions
from jsplan.workflows.drift import drift
from tests.drift import sink_outages
from tests.drift.sink_outages import SinkOutages
from tests.drift.test_sinks import WebhookServer
from tests.support.raw import Raw
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer
    from tests.drift.conftest import WatchedSpace, WatchJob

OWN, FOREIGN = ("OWN_HUB", "OWN_LEAF"), ("F1", "F2", "F3", "F4")


class Chaos:
    """Random events. Only applies change `OWN_*`; only others change `F*` and unmanaged streams."""

    def __init__(
        self, watched_space: WatchedSpace, hook: WebhookServer, seed: int, ops: Server | None = None
    ) -> None:
        self.watched = watched_space
        self.hook = hook
        self.ops = ops
        self.random = random.Random(seed)
        self.own = dict.fromkeys(OWN, 100)
        self.applies: list[str] = []

    def write(self) -> None:
        """Write the files as they are meant to be now."""
        streams: list[dict[str, Any]] = [
            {"name": name, "domain": "hub", "subjects": [name]} for name in FOREIGN[:2]
        ]
        streams += [{"name": name, "domain": "leaf", "subjects": [name]} for name in FOREIGN[2:]]
        streams += [
            {
                "name": name,
                "domain": name[4:].lower(),
                "subjects": [name],
                "max_msgs": most,
                "consumers": [{"name": "C", "ack_policy": "explicit", "max_ack_pending": most}],
            }
            for name, most in self.own.items()
        ]
        to = "ops" if self.ops else "hub"
        sinks = [
            {"webhook": {"url": self.hook.url}},
            {"file": "sink/drift.jsonl"},
            {"subject": "ops.drift", "domain": to},
        ]
        self.watched.space.write(streams=streams, drift={"sinks": sinks, "ignore": ["ops/**"]})

    def settle(self) -> None:
        """Start everything and repair every sink that is not meant to fail."""
        self.resume_leaf()
        self.watched.sandbox.start()
        if self.ops is None:
            self.hook.status = 200
            self.folder.mkdir(exist_ok=True)

    @property
    def folder(self) -> Path:
        """The folder of the file sink, which fails without it."""
        return self.watched.space.folder / "sink"

    def pause_leaf(self) -> None:
        """Pause the leaf: it stops answering and keeps its connections."""
        self.watched.sandbox["leaf"].pause()

    def resume_leaf(self) -> None:
        """Let the leaf continue."""
        self.watched.sandbox["leaf"].resume()

    def restart(self) -> None:
        """Restart the hub or the leaf."""
        self.resume_leaf()
        self.watched.sandbox[self.random.choice(["hub", "leaf"])].restart()
        self.watched.sandbox.wait_ready()

    def change_outside(self) -> None:
        """Change a stream outside jsplan, or change it back."""
        name = self.random.choice(FOREIGN)
        with self._connect("hub" if name in FOREIGN[:2] else "leaf") as raw:
            raw.update(name, max_age=self.random.choice([0, 10**12, 2 * 10**12]))

    def change_unmanaged(self) -> None:
        """Create an unmanaged stream, or delete it."""
        with self._connect("hub") as raw:
            if self.random.random() < 0.4:
                raw.api("$JS.API.STREAM.DELETE.STRANGE")
            else:
                config = {"name": "STRANGE", "subjects": ["strange"]}
                raw.api("$JS.API.STREAM.CREATE.STRANGE", config)

    def _connect(self, domain: str) -> Raw:
        self.resume_leaf()
        server = self.watched.sandbox[domain]
        return Raw(server.url, server.user, server.password)

    def apply(self) -> None:
        """Change the own streams with an apply."""
        self.resume_leaf()
        self.watched.sandbox.wait_ready()
        for name in OWN:
            self.own[name] = self.random.randrange(100, 1000)
        self.write()
        targets = tuple(f"*/*/{name}{below}" for name in OWN for below in ("", "/C"))
        # On a busy machine a server may answer late, and an incomplete apply leaves drift.
        for _ in range(5):
            begun = time.monotonic()
            _, result = self.watched.space.apply(targets=targets)
            undone = [(r.address, r.status, r.error) for r in result.steps if r.error]
            self.applies.append(f"{result.exit_code} in {time.monotonic() - begun:.1f} s: {undone}")
            if result.exit_code == 0:
                return
            self.watched.sandbox.wait_ready()
        raise AssertionError(self.applies[-5:])

    def sinks(self) -> None:
        """Break or repair the sinks, unless `SinkOutages` does that."""
        if self.ops is not None:
            return
        self.hook.status = self.random.choice([200, 500])
        if self.random.random() < 0.5:
            self.folder.mkdir(exist_ok=True)

    def do_anything(self) -> None:
        """Do one event at random."""
        self.random.choice(
            [
                self.change_outside,
                self.change_outside,
                self.change_outside,
                self.change_unmanaged,
                self.apply,
                self.pause_leaf,
                self.restart,
                self.sinks,
            ]
        )()


@pytest.fixture
def chaos_hook() -> Iterator[WebhookServer]:
    """A web server that ends with the test."""
    made = WebhookServer()
    yield made
    made.close()


@pytest.fixture
def ops(make_server: MakeServer) -> Server:
    """A server of its own for the subject of the notifications."""
    return make_server(domain="ops")


def open_alerts(seen: list[dict[str, Any]]) -> dict[str, str]:
    """Return the open alerts by address; fail where one was reported twice."""
    opened: dict[str, dict[str, Any]] = {}
    reported = [
        (notification, alert)
        for notification in seen
        for alert in notification["alerts"] or [notification["alert"]]
    ]
    for notification, alert in reported:
        known = opened.get(alert["id"])
        if notification["event"] == "opened":
            assert known is None, f"opened twice: {notification['text']}"
        else:
            assert known is not None, (
                f"{notification['event']} without being open: {notification['text']}"
            )
        if notification["event"] == "changed":
            assert known is not None
            assert (known["kind"], known["fields"]) != (alert["kind"], alert["fields"]), (
                f"reported twice: {notification['text']}"
            )
        opened[alert["id"]] = alert
        if notification["event"] == "resolved":
            del opened[alert["id"]]
    return {alert["address"]: alert["id"] for alert in opened.values()}


def require_agreement(job: WatchJob, watched_space: WatchedSpace) -> None:
    """Wait until the job has reported exactly what `jsplan drift` reports."""
    document = drift(watched_space.space.load, DriftOptions(), RecordingObserver())
    wanted = (
        {r.address for r in document.resource_drift}
        | {u.address for u in document.unmanaged}
        | {str(d["domain"]) for d in document.offline if d["domain"] != "ops"}
    )
    job.wait_until(
        lambda: (job.drain(), set(open_alerts(job.seen)))[1] == wanted,
        f"the job agreed on {wanted}; {job.seen[-5:]}",
        60,
    )


def start_job(
    watched_space: WatchedSpace, hook: WebhookServer, seed: int, ops: Server | None = None
) -> tuple[Chaos, WatchJob]:
    """Start a job over a workspace that is ready for chaos."""
    chaos = Chaos(watched_space, hook, seed, ops)
    watched_space.space.base["connections"]["hub"]["timeout"] = "1s"
    if ops is not None:
        chaos.folder.mkdir()
        watched_space.space.base["connections"]["ops"] = {"url": ops.url, "timeout": "1s"}
        watched_space.space.base["domains"] = watched_space.space.base["domains"] | {
            "ops": {"connection": "ops"}
        }
        with Raw(ops.url) as raw:
            raw.api_ok("$JS.ops.API.STREAM.CREATE.OPS", sink_outages.STREAM)
    chaos.write()
    watched_space.space.apply()
    return chaos, watched_space.start_job("--every", "2s", "--jitter", "500ms", "--grace", "5m")


def unusual_applies(chaos: Chaos) -> list[str]:
    """Return the applies that failed or took long."""
    return [
        line for line in chaos.applies if not line.startswith("0 in ") or float(line.split()[2]) > 5
    ]


def fail_each_sink(chaos: Chaos, job: WatchJob, seconds: float) -> SinkOutages:
    """Return outages of `seconds` for each sink of the job."""
    assert chaos.ops is not None
    return SinkOutages(
        job,
        [
            sink_outages.webhook_sink(chaos.hook),
            sink_outages.folder_sink(chaos.folder),
            sink_outages.subject_sink(chaos.ops),
        ],
        seconds,
    )


def run_rounds(
    chaos: Chaos,
    job: WatchJob,
    count: int,
    actions: int,
    end: float = float("inf"),
    failing: SinkOutages | None = None,
) -> None:
    """Run rounds of chaos, each with calm after it, then check what every sink received."""
    watched, hook = chaos.watched, chaos.hook
    for _ in range(count):
        for _ in range(actions):
            chaos.do_anything()
            if failing is not None:
                failing.step()
            time.sleep(chaos.random.uniform(0, 0.2))  # so that some events coincide
        chaos.settle()
        watched.sandbox.wait_ready()
        require_agreement(job, watched)
        if time.monotonic() > end and (failing is None or failing.is_over):
            break
    chaos.change_outside()
    require_agreement(job, watched)
    ids = {notification["id"] for notification in job.seen}
    path = chaos.folder / "drift.jsonl"
    job.wait_until(
        lambda: (
            ids <= set(hook.ids)
            and ids
            <= (
                {json.loads(line)["id"] for line in path.read_text("utf-8").splitlines()}
                if path.exists()
                else set()
            )
        ),
        "the delivery of everything to every sink",
        60,
    )
    if failing is not None:
        failing.wait_until_delivered()
    assert job.stop() == 0
    assert not [
        notification["text"]
        for notification in job.seen
        if "OWN" in notification["alert"]["address"]
    ], unusual_applies(chaos)
    assert not [
        notification["text"]
        for notification in job.seen
        if notification["alert"]["kind"] in ("missing", "check", "offline")
    ]
    by_address: dict[str, set[str]] = {}
    for notification in job.seen:
        by_address.setdefault(notification["alert"]["address"], set()).add(
            notification["alert"]["id"]
        )
    assert all(len(alert_ids) == 1 for alert_ids in by_address.values())


@pytest.mark.matrix
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [11])
def test_one_round_of_chaos(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, seed: int
) -> None:
    """Each finding is reported once, with one id, to every sink, and own changes never."""
    run_rounds(*start_job(watched_space, chaos_hook, seed), 1, 10)


@pytest.mark.timeout(240)
def test_each_sink_fails_in_turn(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, ops: Server
) -> None:
    """Each sink that failed receives every notification afterwards."""
    chaos, job = start_job(watched_space, chaos_hook, 3, ops)
    failing = fail_each_sink(chaos, job, 0)
    while not failing.is_over:
        chaos.change_outside()
        require_agreement(job, watched_space)
        failing.step()
    assert job.stop() == 0

    assert [name for name, _ in failing.durations] == [o.name for o in failing.sinks] * 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1])
def test_ten_minutes_of_chaos(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, ops: Server, seed: int
) -> None:
    """Ten minutes of chaos, in which each sink fails for a minute, then all of them."""
    chaos, job = start_job(watched_space, chaos_hook, seed, ops)
    failing = fail_each_sink(chaos, job, 60)
    run_rounds(chaos, job, 10_000, 15, time.monotonic() + 600, failing)

    assert failing.is_over
    assert [name for name, lasted in failing.durations if lasted >= 60] == [
        o.name for o in failing.sinks
    ] * 2


def resident_memory(pid: int) -> int:
    """Return the resident memory, in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123 - a file of the kernel
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("events", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(300)
def test_memory_does_not_grow(watched_space: WatchedSpace, events: int) -> None:
    """After thousands of changes the job takes no more memory than after the first ones."""
    job = watched_space.write().start_job("--every", "1h")
    hub = watched_space.sandbox["hub"]
    sizes = []
    with Raw(hub.url, hub.user, hub.password) as raw:
        config = raw.config("A")

        def change_streams(count: int, first: int) -> None:
            for number in range(first, first + count // 4):
                raw.api_ok(
                    "$JS.API.STREAM.UPDATE.A", config | {"max_age": 10**12 + number % 7 * 10**11}
                )
                raw.api_ok("$JS.API.STREAM.UPDATE.A", config)
                raw.create(f"T{number}", subjects=[f"t{number}"], storage="memory")
                raw.api_ok(f"$JS.API.STREAM.DELETE.T{number}")

        def knows_of(changes: int) -> Callable[[], bool]:
            return lambda: job.metric("jsplan_drift_advisories_total") >= changes

        for share in range(4):
            change_streams(events // 4, share * events)
            changes = (share + 1) * (events // 16 * 4)
            job.wait_until(knows_of(changes), f"advisory {changes}")
            sizes.append(resident_memory(job.process.pid))
            job.drain()
    assert job.stop() == 0

    assert sizes[-1] - sizes[0] < 6 * 1024, sizes
