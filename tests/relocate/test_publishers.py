"""Publishers and workers during a relocation: nothing acknowledged is missing or twice."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.relocate.scene import BODY, PERMITTED, RENAMED, TO_HUB, Route
from tests.relocate.test_accounts import Accounts
from tests.support import stream_content
from tests.support.process import run_process
from tests.support.raw import NoResponders, Raw, streams
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

ALLOWED = [part for code in PERMITTED for part in ("--allow-hazard", code)]
#: To another domain, to another name, and to another account.
ROUTES = ("to_hub", "renamed", "to_account")
#: Messages that a worker asks for at once, and that the publisher sends before it waits.
BATCH, WINDOW = 100, 50
#: Nanoseconds that a worker waits for a batch.
WAIT = 100_000_000
#: Messages per second of the publisher, at most: in `make test`, and for a measurement.
SLOW, RATE = 500, 3_000
#: One worker for each: single acknowledgements, those of all before, and none.
CONSUMERS = {"C": "explicit", "ALL": "all", "N": "none"}
#: The same where not every policy is possible: a work queue has one consumer for each message.
CONSUMERS_OF = {
    "limits": CONSUMERS,
    "interest": {"C": "explicit", "ALL": "all"},
    "workqueue": {"C": "explicit"},
}


class Place(NamedTuple):
    """A domain, as a client reaches it."""

    url: str
    user: str | None
    password: str | None

    def raw(self, timeout: float = 60) -> Raw:
        """Open a connection."""
        return Raw(self.url, self.user, self.password, timeout=timeout)


class Publisher(threading.Thread):
    """Publishes numbers, each until it is acknowledged; in the next place where none is.

    `longest` is the longest time without an acknowledgement, in seconds.
    """

    def __init__(self, places: list[Place]) -> None:
        super().__init__()
        self.places = itertools.cycle(places)
        self.rate = RATE
        self.acknowledged: set[int] = set()
        self.unanswered: set[int] = set()
        self.longest = 0.0
        self.stopping = threading.Event()
        self._next = 0
        self._waiting: list[int] = []
        self._last = self._due = time.monotonic()

    def run(self) -> None:
        """Publish numbers, on a new connection after requests without any answer."""
        while not self.stopping.is_set():
            try:
                with next(self.places).raw(timeout=1) as raw:
                    raw.subscribe("publisher.*")
                    while not self.stopping.is_set() and self._publish(raw):
                        pass
            except TimeoutError:
                self.unanswered.update(self._waiting)
        self.unanswered.update(self._waiting)

    def _publish(self, raw: Raw) -> bool:
        """Publish what was refused and new numbers. Return False if no stream took any of them."""
        self._due = max(self._due + WINDOW / self.rate, time.monotonic() - 1)
        time.sleep(max(0, self._due - time.monotonic()))
        while len(self._waiting) < WINDOW and not self.stopping.is_set():
            self._waiting.append(self._next)
            self._next += 1
        sent = len(self._waiting)
        for number in self._waiting:
            raw.publish("A.n", f"number {number}".encode(), reply=f"publisher.{number}")
        for _ in range(len(self._waiting)):
            subject, _, _, answer = raw.next_with_reply()
            if b'"seq"' not in answer:  # no stream takes it, or it refuses it while it changes
                continue
            number, now = int(subject.rpartition(".")[2]), time.monotonic()
            self.acknowledged.add(number)
            self._waiting.remove(number)
            self.longest, self._last = max(self.longest, now - self._last), now
        return len(self._waiting) < sent


class Worker(threading.Thread):
    """Pulls and acknowledges the messages of a consumer, wherever its stream is."""

    def __init__(self, places: list[tuple[Place, str]], name: str) -> None:
        super().__init__()
        self.places, self.name = places, name
        self.received: Counter[bytes] = Counter()
        self._pulls = itertools.count()
        self.stopping = threading.Event()

    def run(self) -> None:
        """Pull from each place, until it is to stop."""
        while not self.stopping.is_set():
            for place, stream in self.places:
                try:
                    # What is on its way when a connection ends is lost for a consumer without acks.
                    with place.raw(timeout=20) as raw:
                        while self._pull(raw, stream):
                            pass
                except (NoResponders, OSError, AssertionError, IndexError):  # it is not there
                    time.sleep(0.01)

    def _pull(self, raw: Raw, stream: str) -> bool:
        """Take one batch. Return True if it was full.

        Each request has a subject of its own. With the same one for all, what a busy link to the
        other domain brings late arrives a second time, at the next request there.
        """
        inbox = f"worker.{self.name}.{next(self._pulls)}"
        raw.subscribe(inbox)
        request = json.dumps({"batch": BATCH, "expires": WAIT}).encode()
        verb = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self.name}"
        raw.publish(verb, request, reply=inbox)
        last, count = "", 0
        while count < BATCH:  # a whole batch ends without a status
            _, reply, headers, payload = raw.next_with_reply()
            if headers.get("Status"):
                break
            self.received[payload] += 1
            last, count = reply, count + 1
            if CONSUMERS[self.name] == "explicit":
                raw.publish(reply, b"+ACK")
        if last and CONSUMERS[self.name] == "all":
            raw.publish(last, b"+ACK")
        raw.unsubscribe()
        return count == BATCH and not self.stopping.is_set()


class Load:
    """A stream with a publisher and a worker for each consumer, and a relocation of it."""

    def __init__(
        self, space: Space, places: dict[str, Place], route: Route, retention: str = "limits"
    ) -> None:
        self.before, self.after, self.name = route
        self.space, self.places, self.retention = space, places, retention
        own = dict.fromkeys((places[self.before], places[self.after]))
        # Between a hub and its leaves a publish finds the stream wherever it is.
        crossing = len({place.user for place in own}) > 1
        self.publisher = Publisher(list(own) if crossing else [places["leaf"]])
        self.workers = [
            Worker([(places[self.before], "A"), (places[self.after], self.name)], name)
            for name in CONSUMERS_OF[retention]
        ]
        self.seconds, self.count, self.output = 0.0, 0, ""

    def run(self, count: int, rate: int) -> None:
        """Fill the stream, relocate it while all are at work, and let the workers end."""
        self.count, self.publisher.rate = count, rate
        body = BODY | {
            "allow_direct": True,
            "retention": self.retention,
            "consumers": [
                {"name": n, "ack_policy": p} for n, p in CONSUMERS_OF[self.retention].items()
            ],
        }
        self.space.write(streams=[body | {"domain": self.before}]).apply()
        with self.places[self.before].raw() as raw:
            stream_content.fill(raw, "A", count)
        self.space.write(
            streams=[body | {"domain": self.after, "name": self.name}],
            relocate=[
                {"from": f"{self.before}/stream/A", "to": f"{self.after}/stream/{self.name}"}
            ],
        )
        threads: list[Publisher | Worker] = [self.publisher, *self.workers]
        for thread in threads:
            thread.start()
        try:
            self._wait_for_acks()
            self.publisher.longest, started = 0.0, time.monotonic()
            result = run_process(self.space.folder, "apply", "-y", *ALLOWED, timeout=1200)
            self.seconds, self.output = time.monotonic() - started, result.out + result.err
            assert result.code == 0, result.text
            self._wait_for_acks()
            self.publisher.stopping.set()
            self.publisher.join()
            self._wait_for(self._is_delivered, "deliver all")
        finally:
            for thread in threads:
                thread.stopping.set()
            for thread in threads:
                thread.join()

    def _wait_for_acks(self) -> None:
        known = len(self.publisher.acknowledged)
        self._wait_for(lambda: len(self.publisher.acknowledged) > known + 100, "take messages")

    def _wait_for(self, ready: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + 600
        while not ready():
            assert time.monotonic() < end, f"{self.name} did not {what}"
            time.sleep(0.05)

    def _is_delivered(self) -> bool:
        with self.places[self.after].raw() as raw:
            found = stream_content.positions(raw, self.name)
        return len(found) == len(self.workers) and not any(n[2] + n[3] for n in found.values())

    def require_complete(self) -> None:
        """Check by hash that each acknowledged message is there once, and each was delivered."""
        with self.places[self.after].raw() as raw:
            stored = self._stored(raw)
        if self.before != self.after:
            with self.places[self.before].raw() as raw:
                assert streams(raw) == []
        hashes = Counter(hashlib.sha256(payload).digest() for payload in stored)
        numbers, unsure = (
            {hashlib.sha256(f"number {n}".encode()).digest() for n in found}
            for found in (self.publisher.acknowledged, self.publisher.unanswered)
        )
        assert numbers <= hashes.keys()
        assert [h for h, times in hashes.items() if times > 1 and h not in unsure] == []
        assert len(hashes.keys() - numbers - unsure) == self.count
        for worker in self.workers:
            assert worker.received.keys() >= set(stored), worker.name
            # What it had when its consumer was paused is delivered again, and nothing besides.
            most = 0 if CONSUMERS[worker.name] == "none" else BATCH
            assert self.redelivered(worker) <= most + len(unsure), worker.name

    def _stored(self, raw: Raw) -> list[bytes]:
        """Return what the target has; what workers got, where it deletes what they finish."""
        if self.retention != "limits":
            info = raw.api_ok(f"$JS.API.STREAM.INFO.{self.name}")
            assert info["config"]["retention"] == self.retention
            assert info["state"]["messages"] == 0
            return list(self.workers[0].received)
        stream_content.consumer(raw, self.name, "CHECK", ack_policy="none")
        return stream_content.payloads(raw, self.name, "CHECK")

    @staticmethod
    def redelivered(worker: Worker) -> int:
        """Return how many deliveries were not the first ones."""
        return worker.received.total() - len(worker.received)


@contextmanager
def open_route(
    name: str, folder: Path, sandbox: Sandbox, retention: str = "limits"
) -> Iterator[Load]:
    """Yield the load of a route, with the servers that it needs."""
    if name == "to_account":
        accounts = Accounts(folder)
        server = accounts.sandbox["hub"]
        places = {"hub": Place(server.url, "acc", "acc"), "imp": Place(server.url, "imp", "imp")}
        try:
            yield Load(accounts.space, places, ("hub", "imp", "B"), retention)
        finally:
            accounts.sandbox.close()
        return
    places = {key: Place(s.url, s.user, s.password) for key, s in sandbox.servers.items()}
    route = TO_HUB if name == "to_hub" else RENAMED
    yield Load(hub_leaf_space(folder, sandbox), places, route, retention)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("route", ROUTES)
def test_acknowledged_messages_are_moved_once(
    route: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Each acknowledged message is in the target once, and each worker gets each of them."""
    with open_route(route, tmp_path, clean_hub_leaf) as load:
        load.run(1_000, SLOW)

        load.require_complete()
        assert len(load.publisher.acknowledged) > 200
        assert load.publisher.longest < 20  # not a measurement: the machine is shared


@pytest.mark.timeout(180)
@pytest.mark.parametrize("retention", ["interest", "workqueue"])
def test_queues_move_while_workers_empty_them(
    retention: str, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Each acknowledged message is delivered, and again only what a worker had at the move."""
    with open_route("to_hub", tmp_path, clean_hub_leaf, retention) as load:
        load.run(1_000, SLOW)

        load.require_complete()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("route", ROUTES)
def test_half_a_million_messages(
    route: str, tmp_path: Path, clean_hub_leaf: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same with 500,000 messages. What was measured is printed."""
    with open_route(route, tmp_path, clean_hub_leaf) as load:
        load.run(500_000, RATE)

        load.require_complete()
    again = {worker.name: load.redelivered(worker) for worker in load.workers}
    published = len(load.publisher.acknowledged)
    with capsys.disabled():
        print(  # noqa: T201 - the measurement is what the test is run for
            f"\n{load.output}\n{published:,} messages were published, the longest time without an "
            f"acknowledgement was {load.publisher.longest:.2f} s, apply took {load.seconds:.0f} s, "
            f"delivered again: {again}"
        )
