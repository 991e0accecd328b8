"""Publishers and workers while apply dies: nothing acknowledged is missing or stored twice."""

from __future__ import annotations

import hashlib
import itertools
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from tests.support import stream_content
from tests.support.raw import NoResponders, Raw
from tests.support.simulated_kill import KillCounter, SimulatedKill, kill_after

if TYPE_CHECKING:
    from tests.kills.scene import Scene
    from tests.kills.servers import Place

#: Messages that a worker asks for at once, and that the publisher sends before it waits.
BATCH, WINDOW = 100, 50
#: Nanoseconds that a worker waits for a batch.
WAIT = 100_000_000
#: How often an apply may find workers that its plan did not see.
TRIES = 5


class Publisher(threading.Thread):
    """Publishes numbers, each until it is acknowledged; in the next place where none is.

    `longest` is the longest time without an acknowledgement, in seconds.
    """

    def __init__(self, places: list[Place], rate: int) -> None:
        super().__init__()
        self.places = itertools.cycle(places)
        self.rate = rate
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

    def __init__(self, places: list[tuple[Place, str]], name: str, policy: str) -> None:
        super().__init__()
        self.places, self.name, self.policy = places, name, policy
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
            if self.policy == "explicit":
                raw.publish(reply, b"+ACK")
        if last and self.policy == "all":
            raw.publish(last, b"+ACK")
        raw.unsubscribe()
        return count == BATCH and not self.stopping.is_set()


class Load:
    """A row with a publisher to its stream, and a worker for each consumer."""

    def __init__(self, scene: Scene, rate: int) -> None:
        self.scene, self.applies = scene, 0
        ((self.old, self.new),) = scene.row.kept.items()
        places = [scene.servers.places[each.split("/")[0]] for each in (self.old, self.new)]
        streams = [each.split("/")[1] for each in (self.old, self.new)]
        # Between a hub and its leaves a publish finds the stream wherever it is.
        crossing = places[0].user != places[1].user
        self.publisher = Publisher(places if crossing else places[:1], rate)
        (self.body,) = scene.row.before["streams"]
        both = list(dict.fromkeys(zip(places, streams, strict=True)))
        self.workers = [
            Worker(both, consumer["name"], consumer["ack_policy"])
            for consumer in self.body["consumers"]
        ]

    def run(self, boundary: int = 1_000_000) -> KillCounter:
        """Prepare the row, and apply while all are at work; die at the boundary and apply again."""
        self.scene.reset()
        threads: list[Publisher | Worker] = [self.publisher, *self.workers]
        for thread in threads:
            thread.start()
        try:
            self._wait_for_acks()
            self.publisher.longest = 0.0
            with kill_after(boundary) as counter, suppress(SimulatedKill):
                self._require_applied()
            if counter.died:
                self._require_applied()
            self._wait_for_acks()
            self.publisher.stopping.set()
            self.publisher.join()
            self.scene.wait(self._is_delivered, "deliver all")
        finally:
            for thread in threads:
                thread.stopping.set()
            for thread in threads:
                thread.join()
        self.scene.require_clean(self.scene.row.after, boundary)
        return counter

    def _require_applied(self) -> None:
        """Apply; again where workers that were quiet for the plan are at work when it is applied."""
        for _ in range(TRIES):
            self.applies += 1
            result = self.scene.apply()
            failed = [step.error for step in result.steps if step.error]
            if not any("took messages since it was planned" in error for error in failed):
                break
        assert (failed, result.exit_code) == ([], 0)

    def _wait_for_acks(self) -> None:
        known = len(self.publisher.acknowledged)
        self.scene.wait(lambda: len(self.publisher.acknowledged) > known + 100, "take messages")

    def _is_delivered(self) -> bool:
        domain, stream = self.new.split("/")
        with self.scene.raw(domain) as raw:
            found = stream_content.positions(raw, stream)
        return len(found) == len(self.workers) and not any(n[2] + n[3] for n in found.values())

    def require_complete(self) -> None:
        """Check by hash that each acknowledged message is there once, and each was delivered.

        What a worker has when its consumer is paused is delivered again, by each apply.
        """
        stored = self._stored()
        hashes = Counter(hashlib.sha256(payload).digest() for payload in stored)
        numbers, unsure = (
            {hashlib.sha256(f"number {n}".encode()).digest() for n in found}
            for found in (self.publisher.acknowledged, self.publisher.unanswered)
        )
        assert len(numbers) > 200
        assert numbers <= hashes.keys()
        assert [h for h, times in hashes.items() if times > 1 and h not in unsure] == []
        assert len(hashes.keys() - numbers - unsure) == self.scene.row.messages
        for worker in self.workers:
            assert worker.received.keys() >= set(stored), worker.name
            again = worker.received.total() - len(worker.received)
            most = 0 if worker.policy == "none" else BATCH * self.applies
            assert again <= most + len(unsure), worker.name

    def _stored(self) -> list[bytes]:
        """Return what the stream has; what workers got, where it deletes what they finish."""
        domain, stream = self.new.split("/")
        with self.scene.raw(domain) as raw:
            if self.body.get("retention", "limits") == "limits":
                raw.consumer(stream, "CHECK", ack_policy="none")
                return stream_content.payloads(raw, stream, "CHECK")
            info = f"$JS.API.STREAM.INFO.{stream}"
            # No worker waits for an answer to its last acknowledgement.
            self.scene.wait(lambda: raw.api_ok(info)["state"]["messages"] == 0, "finish all")
        return list(self.workers[0].received)
