"""A watch while servers are restarted and frozen, others change things and we apply: nothing is missed, nothing is told twice."""

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
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.conftest import MakeServer
    from tests.drift.conftest import WatchedSpace, WatchJob

OWN, FOREIGN = ("OWN_HUB", "OWN_LEAF"), ("F1", "F2", "F3", "F4")


class Chaos:
    """What happens to a place. `OWN_*` streams are changed by our applies only, `F*` and what is unmanaged by others only."""

    def __init__(
        self, watched_space: WatchedSpace, hook: WebhookServer, seed: int, ops: Server | None = None
    ) -> None:
        self.place = watched_space
        self.hook = hook
        self.ops = ops
        self.random = random.Random(seed)
        self.own = dict.fromkeys(OWN, 100)
        self.applies: list[str] = []

    def write(self) -> None:
        """The files as they are meant to be now."""
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
        self.place.space.write(streams=streams, drift={"sinks": sinks, "ignore": ["ops/**"]})

    def settle(self) -> None:
        """Everything runs, and every sink works that is not meant to fail."""
        self.thaw()
        self.place.sandbox.start()
        if self.ops is None:
            self.hook.status = 200
            self.folder.mkdir(exist_ok=True)

    @property
    def folder(self) -> Path:
        """Where the file sink writes; without it, it fails."""
        return self.place.space.folder / "sink"

    def freeze(self) -> None:
        """The leaf stops answering with its connections open."""
        self.place.sandbox["leaf"].pause()

    def thaw(self) -> None:
        """It goes on."""
        self.place.sandbox["leaf"].resume()

    def restart(self) -> None:
        """Hub or leaf ends and comes back."""
        self.thaw()
        self.place.sandbox[self.random.choice(["hub", "leaf"])].restart()
        self.place.sandbox.wait_ready()

    def change_outside(self) -> None:
        """Somebody changes a stream, or changes it back."""
        name = self.random.choice(FOREIGN)
        domain = "hub" if name in FOREIGN[:2] else "leaf"
        self._ask(domain, lambda raw: self._change(raw, name))

    def _change(self, raw: Raw, name: str) -> None:
        config = raw.api_ok(f"$JS.API.STREAM.INFO.{name}")["config"]
        raw.api_ok(
            f"$JS.API.STREAM.UPDATE.{name}",
            config | {"max_age": self.random.choice([0, 10**12, 2 * 10**12])},
        )

    def change_unmanaged(self) -> None:
        """Somebody makes a stream that nobody manages, or removes it."""
        self._ask(
            "hub",
            lambda raw: (
                raw.api("$JS.API.STREAM.DELETE.STRANGE")
                if self.random.random() < 0.4
                else raw.api(
                    "$JS.API.STREAM.CREATE.STRANGE", {"name": "STRANGE", "subjects": ["strange"]}
                )
            ),
        )

    def _ask(self, domain: str, do: Any) -> None:
        self.thaw()
        server = self.place.sandbox[domain]
        with Raw(server.url, server.user, server.password) as raw:
            do(raw)

    def apply(self) -> None:
        """We change our own."""
        self.thaw()
        self.place.sandbox.wait_ready()
        for name in OWN:
            self.own[name] = self.random.randrange(100, 1000)
        self.write()
        targets = tuple(f"*/*/{name}{below}" for name in OWN for below in ("", "/C"))
        for _ in range(
            5
        ):  # what an apply leaves undone, on a machine so busy that servers do not answer in time, is drift indeed
            begun = time.monotonic()
            _, result = self.place.space.apply(targets=targets)
            undone = [(r.address, r.status, r.error) for r in result.steps if r.error]
            self.applies.append(f"{result.exit_code} in {time.monotonic() - begun:.1f} s: {undone}")
            if result.exit_code == 0:
                return
            self.place.sandbox.wait_ready()
        raise AssertionError(self.applies[-5:])

    def sinks(self) -> None:
        """A sink fails, or works again; where they fail for minutes, they do that on their own."""
        if self.ops is not None:
            return
        self.hook.status = self.random.choice([200, 500])
        if self.random.random() < 0.5:
            self.folder.mkdir(exist_ok=True)

    def do_anything(self) -> None:
        """Anything."""
        self.random.choice(
            [
                self.change_outside,
                self.change_outside,
                self.change_outside,
                self.change_unmanaged,
                self.apply,
                self.freeze,
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
    """A server of its own for what is told on a subject."""
    return make_server(domain="ops")


def open_alerts(seen: list[dict[str, Any]]) -> dict[str, str]:
    """The situations that are open after these notices, by address; fails where one is told twice."""
    found: dict[str, dict[str, Any]] = {}
    for notice in seen:
        situation = notice["alert"]
        known = found.get(situation["id"])
        if notice["event"] == "opened":
            assert known is None, f"opened twice: {notice['text']}"
        else:
            assert known is not None, f"{notice['event']} without being open: {notice['text']}"
        if notice["event"] == "changed":
            assert known is not None
            assert (known["kind"], known["fields"]) != (situation["kind"], situation["fields"]), (
                f"told twice: {notice['text']}"
            )
        found[situation["id"]] = situation
        if notice["event"] == "resolved":
            del found[situation["id"]]
    return {situation["address"]: situation["id"] for situation in found.values()}


def current_findings(watched_space: WatchedSpace) -> set[str]:
    """What one run of `jsplan drift` finds."""
    found = drift(watched_space.space.load, DriftOptions(), RecordingObserver())
    return (
        {r.address for r in found.resource_drift}
        | {u.address for u in found.unmanaged}
        | {str(d["domain"]) for d in found.offline if d["domain"] != "ops"}
    )


def require_agreement(job: WatchJob, watched_space: WatchedSpace) -> None:
    """After a while the job has told exactly what a full look finds."""
    wanted = current_findings(watched_space)
    job.wait_until(
        lambda: (job.drain(), set(open_alerts(job.seen)))[1] == wanted,
        f"the job agreed on {wanted}; {job.seen[-5:]}",
        60,
    )


def file_sink_alerts(path: Path) -> set[str]:
    """The notices that the file sink wrote."""
    return (
        {json.loads(line)["id"] for line in path.read_text("utf-8").splitlines()}
        if path.exists()
        else set()
    )


def report_addresses(path: Path) -> set[str]:
    """What the report shows as drifted."""
    return (
        {r["address"] for r in json.loads(path.read_text("utf-8"))["resource_drift"]}
        if path.exists()
        else set()
    )


def start_job(
    watched_space: WatchedSpace, hook: WebhookServer, seed: int, ops: Server | None = None
) -> tuple[Chaos, WatchJob]:
    """A job over a place where chaos may begin."""
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
    kept = (
        (
            "--report",
            str(chaos.folder / "drift.json"),
            "--metrics-file",
            str(chaos.folder / "drift.prom"),
        )
        if ops is not None
        else ()
    )
    return chaos, watched_space.start_job(
        "--every", "2s", "--jitter", "500ms", "--grace", "5m", *kept
    )


def unusual_applies(chaos: Chaos) -> list[str]:
    """Our applies that did not go through at once, or took long."""
    return [
        said for said in chaos.applies if not said.startswith("0 in ") or float(said.split()[2]) > 5
    ]


def fail_each_sink(chaos: Chaos, job: WatchJob, seconds: float) -> SinkOutages:
    """Every sink of the job, to fail for so long."""
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
    """Rounds of chaos with calm after each; in the end every sink has everything and nothing was told about our own."""
    place, hook = chaos.place, chaos.hook
    for _ in range(count):
        for _ in range(actions):
            chaos.do_anything()
            if failing is not None:
                failing.step()
            time.sleep(chaos.random.uniform(0, 0.2))  # what may coincide, and what may not
        chaos.settle()
        place.sandbox.wait_ready()
        require_agreement(job, place)
        if time.monotonic() > end and (failing is None or failing.is_over):
            break
    chaos.change_outside()
    require_agreement(job, place)
    ids = {notice["id"] for notice in job.seen}
    job.wait_until(
        lambda: ids <= set(hook.ids) and ids <= file_sink_alerts(chaos.folder / "drift.jsonl"),
        "every sink had everything",
        60,
    )
    if failing is not None:
        failing.wait_until_delivered()
    assert job.stop() == 0
    assert not [notice["text"] for notice in job.seen if "OWN" in notice["alert"]["address"]], (
        unusual_applies(chaos)
    )
    assert not [
        notice["text"]
        for notice in job.seen
        if notice["alert"]["kind"] in ("missing", "check", "offline")
    ]
    by_address: dict[str, set[str]] = {}
    for notice in job.seen:
        by_address.setdefault(notice["alert"]["address"], set()).add(notice["alert"]["id"])
    assert all(len(found) == 1 for found in by_address.values())


@pytest.mark.matrix
@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", [11])
def test_a_moment_of_chaos(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, seed: int
) -> None:
    """What is there at the end was told, with one id for each, nothing twice, nothing of our own, and every sink has it."""
    run_rounds(*start_job(watched_space, chaos_hook, seed), 1, 10)


@pytest.mark.timeout(240)
def test_each_sink_fails_in_turn(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, ops: Server
) -> None:
    """Webhook, file and subject fail while something is told, in turn and all at once: then each has it, and the report is new."""
    chaos, job = start_job(watched_space, chaos_hook, 3, ops)
    failing = fail_each_sink(chaos, job, 0)
    while not failing.is_over:
        chaos.change_outside()
        require_agreement(job, watched_space)
        failing.step()
    now = current_findings(watched_space)
    job.wait_until(
        lambda: report_addresses(chaos.folder / "drift.json") == now,
        "the report is as things are",
        60,
    )
    assert job.stop() == 0

    assert [name for name, _ in failing.durations] == [o.name for o in failing.sinks] * 2
    assert "jsplan_drift_last_check_timestamp_seconds" in (chaos.folder / "drift.prom").read_text(
        "utf-8"
    )


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("seed", [1])
def test_ten_minutes_of_chaos(
    watched_space: WatchedSpace, chaos_hook: WebhookServer, ops: Server, seed: int
) -> None:
    """The same for ten minutes, in which each sink fails for a whole minute, and all of them for another one."""
    chaos, job = start_job(watched_space, chaos_hook, seed, ops)
    failing = fail_each_sink(chaos, job, 60)
    run_rounds(chaos, job, 10_000, 15, time.monotonic() + 600, failing)

    assert failing.is_over
    assert [name for name, lasted in failing.durations if lasted >= 60] == [
        o.name for o in failing.sinks
    ] * 2


def resident_memory(pid: int) -> int:
    """Resident memory, in KiB."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:  # noqa: PTH123 - no file to speak of
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


@pytest.mark.parametrize("events", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
@pytest.mark.timeout(300)
def test_memory_does_not_grow(watched_space: WatchedSpace, events: int) -> None:
    """After thousands of changes, back and forth, and of streams that come and go, the job is no larger than after the first."""
    job = watched_space.write().start_job("--every", "1h")
    hub = watched_space.sandbox["hub"]
    sizes = []
    with Raw(hub.url, hub.user, hub.password) as raw:
        config = raw.api_ok("$JS.API.STREAM.INFO.A")["config"]

        def some(count: int, first: int) -> None:
            for number in range(first, first + count // 4):
                raw.api_ok(
                    "$JS.API.STREAM.UPDATE.A", config | {"max_age": 10**12 + number % 7 * 10**11}
                )
                raw.api_ok("$JS.API.STREAM.UPDATE.A", config)
                raw.api_ok(
                    f"$JS.API.STREAM.CREATE.T{number}",
                    {"name": f"T{number}", "subjects": [f"t{number}"], "storage": "memory"},
                )
                raw.api_ok(f"$JS.API.STREAM.DELETE.T{number}")

        for share in range(4):
            some(events // 4, share * events)
            heard = job.metric("jsplan_drift_advisories_total")
            assert heard >= events // 4 * (share + 1)
            sizes.append(resident_memory(job.process.pid))
            job.drain()
    assert job.stop() == 0

    assert sizes[-1] - sizes[0] < 6 * 1024, sizes
