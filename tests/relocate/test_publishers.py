"""Publishers and workers during a relocation: nothing acknowledged is missing or twice."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.relocate.scene import BODY, RENAMED, TO_HUB, Route
from tests.support import stream_content
from tests.support.raw import NoResponders, Raw, streams
from tests.support.workspaces import hub_leaf_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox, Server

ROUTES = pytest.mark.parametrize("route", [TO_HUB, RENAMED], ids=["to_hub", "renamed"])
#: Messages that the worker asks for at once.
BATCH = 100
ALLOWED = ("REMOVES_SUBJECTS", "DUPLICATES_MESSAGES")


class Publisher(threading.Thread):
    """Publishes numbers to the leaf, each until it is acknowledged.

    `longest` is the longest time without an acknowledgement, in seconds.
    """

    def __init__(self, server: Server) -> None:
        super().__init__()
        self.server = server
        self.acknowledged: list[int] = []
        self.unanswered: set[int] = set()
        self.longest = 0.0
        self.stopping = threading.Event()

    def run(self) -> None:
        """Publish numbers, on a new connection after a request without any answer."""
        last = time.monotonic()
        while not self.stopping.is_set():
            try:
                with Raw(self.server.url, self.server.user, self.server.password, timeout=1) as raw:
                    while not self.stopping.is_set():
                        if self._publish(raw):
                            now = time.monotonic()
                            self.longest, last = max(self.longest, now - last), now
            except TimeoutError:
                self.unanswered.add(len(self.acknowledged))

    def _publish(self, raw: Raw) -> bool:
        number = len(self.acknowledged)
        try:
            _, answer = raw.request("A.n", f"number {number}".encode())
        except NoResponders:
            return False
        if b'"seq"' not in answer:
            return False  # the stream refuses it while it changes
        self.acknowledged.append(number)
        return True


class Worker(threading.Thread):
    """Pulls and acknowledges the messages of the consumer C, wherever its stream is."""

    def __init__(self, places: list[tuple[Server, str]]) -> None:
        super().__init__()
        self.places = places
        self.received: list[bytes] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        """Pull from each place, until it is to stop."""
        while not self.stopping.is_set():
            for server, stream in self.places:
                try:
                    with Raw(server.url, server.user, server.password, timeout=2) as raw:
                        self._pull(raw, stream)
                except (NoResponders, OSError, AssertionError, IndexError):  # it is not there
                    time.sleep(0.01)

    def _pull(self, raw: Raw, stream: str) -> None:
        raw.subscribe("worker.here")
        request = json.dumps({"batch": BATCH, "no_wait": True}).encode()
        raw.publish(f"$JS.API.CONSUMER.MSG.NEXT.{stream}.C", request, reply="worker.here")
        for _ in range(BATCH):  # a whole batch ends without a status
            _, reply, headers, payload = raw.next_with_reply()
            if headers.get("Status"):
                break
            self.received.append(payload)
            raw.publish(reply, b"+ACK")
        raw.flush()


def relocate_under_load(route: Route, count: int, folder: Path, sandbox: Sandbox) -> Publisher:
    """Relocate a stream of `count` messages while a publisher and a worker are at it."""
    before, after, name = route
    space = hub_leaf_space(folder, sandbox)
    space.write(streams=[BODY | {"domain": before, "consumers": BODY["consumers"][:1]}])
    space.apply()
    leaf = sandbox["leaf"]
    with Raw(leaf.url, leaf.user, leaf.password, timeout=60) as raw:
        stream_content.fill(raw, "A", count)
    publisher = Publisher(leaf)
    worker = Worker([(sandbox[before], "A"), (sandbox[after], name)])
    for thread in (publisher, worker):
        thread.start()
    try:
        leaf.wait_until(lambda: len(publisher.acknowledged) > 100, "take the first messages")
        publisher.longest = 0.0
        space.write(
            streams=[
                BODY | {"domain": after, "name": name, "consumers": BODY["consumers"][:1]},
            ],
            relocate=[{"from": f"{before}/stream/A", "to": f"{after}/stream/{name}"}],
        )
        _, result = space.apply(allow_hazards=ALLOWED)
        assert [s.error for s in result.steps if s.error] == []
        known = len(publisher.acknowledged)
        leaf.wait_until(lambda: len(publisher.acknowledged) > known + 100, "take messages again")
        publisher.stopping.set()
        publisher.join()
        target = sandbox[after]
        with Raw(target.url, target.user, target.password, timeout=60) as raw:
            total = raw.api_ok(f"$JS.API.STREAM.INFO.{name}")["state"]["messages"]
            target.wait_until(lambda: len(set(worker.received)) >= total, "deliver all", 120)
    finally:
        for thread in (publisher, worker):
            thread.stopping.set()
            thread.join()
    require_complete(publisher, worker, sandbox, route, count)
    return publisher


def require_complete(
    publisher: Publisher, worker: Worker, sandbox: Sandbox, route: Route, count: int
) -> None:
    """Check by hash that each acknowledged message is there once, and each was delivered."""
    before, after, name = route
    target = sandbox[after]
    with Raw(target.url, target.user, target.password, timeout=60) as raw:
        stored = [m[3] for m in stream_content.messages(raw, name)]
    if before != after:
        with Raw(sandbox[before].url, sandbox[before].user, sandbox[before].password) as raw:
            assert streams(raw) == []
    hashes = [hashlib.sha256(payload).digest() for payload in stored]
    unsure = {hashlib.sha256(f"number {n}".encode()).digest() for n in publisher.unanswered}
    wanted = {
        hashlib.sha256(f"number {n}".encode()).digest() for n in range(len(publisher.acknowledged))
    }
    assert wanted <= set(hashes)
    assert len([h for h in hashes if h not in unsure]) == len(set(hashes) - unsure)
    assert len(set(stored)) == count + len(publisher.acknowledged)
    assert set(worker.received) >= set(stored)


@ROUTES
def test_acknowledged_messages_are_moved_once(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox
) -> None:
    """Each acknowledged message is in the target once, and the worker gets each of them."""
    publisher = relocate_under_load(route, 3_000, tmp_path, clean_hub_leaf)

    assert len(publisher.acknowledged) > 200
    assert publisher.longest < 20  # not a measurement: the machine is shared


@pytest.mark.soak
@pytest.mark.timeout(1800)
@ROUTES
def test_half_a_million_messages(
    route: Route, tmp_path: Path, clean_hub_leaf: Sandbox, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same with 500,000 messages. The longest time without acknowledgement is printed."""
    publisher = relocate_under_load(route, 500_000, tmp_path, clean_hub_leaf)

    with capsys.disabled():
        len(publisher.acknowledged)
