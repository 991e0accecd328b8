"""Publishers and workers during a relocation: nothing acknowledged is missing or twice."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.relocate.killed_scene import ALLOWED
from tests.relocate.scene import BODY, RENAMED, TO_HUB, Route
from tests.support import stream_content
from tests.support.process import run_process
from tests.support.raw import NoResponders, Raw, streams
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

ROUTES = pytest.mark.parametrize("route", [TO_HUB, RENAMED], ids=["to_hub", "renamed"])
#: Messages that a worker asks for at once, and that the publisher sends before it waits.
BATCH, WINDOW = 100, 50
#: Nanoseconds that a worker waits for a batch.
WAIT = 100_000_000
#: Messages per second of the publisher, at most.
RATE = 3_000
#: One worker for each: single acknowledgements, those of all before, and none.
CONSUMERS = {"C": "explicit", "ALL": "all", "N": "none"}


class Publisher(threading.Thread):
    """Publishes numbers to the leaf, each until it is acknowledged.

    `longest` is the longest time without an acknowledgement, in seconds.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
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
                with Raw(self.server.url, self.server.user, self.server.password, timeout=1) as raw:
                    raw.subscribe("publisher.*")
                    while not self.stopping.is_set():
                        self._publish(raw)
            except TimeoutError:
                self.unanswered.update(self._waiting)
        self.unanswered.update(self._waiting)

    def _publish(self, raw: Raw) -> None:
        """Publish what was refused and new numbers, and wait for every answer."""
        self._due = max(self._due + WINDOW / RATE, time.monotonic() - 1)
        time.sleep(max(0, self._due - time.monotonic()))
        while len(self._waiting) < WINDOW and not self.stopping.is_set():
            self._waiting.append(self._next)
            self._next += 1
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


class Worker(threading.Thread):
    """Pulls and acknowledges the messages of a consumer, wherever its stream is."""

    def __init__(self, places: list[tuple[Server, str]], name: str) -> None:
        super().__init__()
        self.places, self.name = places, name
        self.received: Counter[bytes] = Counter()
        self._pulls = itertools.count()
        self.stopping = threading.Event()

    def run(self) -> None:
        """Pull from each place, until it is to stop."""
        while not self.stopping.is_set():
            for server, stream in self.places:
                try:
                    # What is on its way when a connection ends is lost for a consumer without acks.
                    with Raw(server.url, server.user, server.password, timeout=20) as raw:
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
    """A stream of the leaf with a publisher, three workers, and a relocation."""

    def __init__(self, folder: Path, sandbox: Sandbox, route: Route, count: int) -> None:
        self.before, self.after, self.name = route
        self.folder, self.sandbox, self.count = folder, sandbox, count
        self.space = hub_leaf_space(folder, sandbox)
        self.publisher = Publisher(sandbox["leaf"])
        self.workers = [
            Worker([(sandbox[self.before], "A"), (sandbox[self.after], self.name)], name)
            for name in CONSUMERS
        ]
        self.seconds, self.output = 0.0, ""

    def run(self) -> None:
        """Fill the stream, relocate it while all are at work, and let the workers end."""
        body = BODY | {
            "allow_direct": True,
            "consumers": [{"name": n, "ack_policy": policy} for n, policy in CONSUMERS.items()],
        }
        self.space.write(streams=[body | {"domain": self.before}]).apply()
        leaf = self.sandbox["leaf"]
        with Raw(leaf.url, leaf.user, leaf.password, timeout=60) as raw:
            stream_content.fill(raw, "A", self.count)
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
            result = run_process(self.folder, "apply", "-y", *ALLOWED, timeout=1200)
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
        self.sandbox["leaf"].wait_until(ready, what, 600)

    def _is_delivered(self) -> bool:
        target = self.sandbox[self.after]
        with Raw(target.url, target.user, target.password, timeout=60) as raw:
            found = stream_content.positions(raw, self.name)
        return len(found) == len(CONSUMERS) and not any(n[2] + n[3] for n in found.values())

    def require_complete(self) -> None:
        """Check by hash that each acknowledged message is there once, and each was delivered."""
        target = self.sandbox[self.after]
        with Raw(target.url, target.user, target.password, timeout=60) as raw:
            stream_content.consumer(raw, self.name, "CHECK", ack_policy="none")
            stored = stream_content.payloads(raw, self.name, "CHECK")
        if self.before != self.after:
            old = self.sandbox[self.before]
            with Raw(old.url, old.user, old.password) as raw:
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

    @staticmethod
    def redelivered(worker: Worker) -> int:
        """Return how many deliveries were not the first ones."""
        return worker.received.total() - len(worker.received)


@ROUTES
def test_acknowledged_messages_are_moved_once(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Each acknowledged message is in the target once, and each worker gets each of them."""
    load = Load(tmp_path, clean_hub_leaf, route, 3_000)
    load.run()

    load.require_complete()
    assert len(load.publisher.acknowledged) > 200
    assert load.publisher.longest < 20  # not a measurement: the machine is shared


@pytest.mark.soak
@pytest.mark.timeout(1800)
@ROUTES
def test_half_a_million_messages(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same with 500,000 messages. What was measured is printed."""
    load = Load(tmp_path, clean_hub_leaf, route, 500_000)
    load.run()

    load.require_complete()
    again = {worker.name: load.redelivered(worker) for worker in load.workers}
    published = len(load.publisher.acknowledged)
    with capsys.disabled():
        print(  # noqa: T201 - the measurement is what the test is run for
            f"\n{load.output}\n{published:,} messages were published, the longest time without an "
            f"acknowledgement was {load.publisher.longest:.2f} s, apply took {load.seconds:.0f} s, "
            f"delivered again: {again}"
        )
