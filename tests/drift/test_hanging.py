from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from jsplan import disk
from jsplan.documents.alert import Alert, AlertEvent
from jsplan.documents.drift import Drift
from jsplan.drift.schedule import Interval
from jsplan.drift.sinks import file as files
from jsplan.drift.sinks import snapshot_file
from jsplan.drift.sinks import webhook as webhooks
from jsplan.drift.sinks.file import FileSink
from jsplan.drift.sinks.sink import Sink, SinkError
from jsplan.drift.sinks.snapshot_file import SnapshotFile
from jsplan.drift.sinks.webhook import Webhook
from jsplan.drift.worker import Worker
from jsplan.options import WatchOptions
from jsplan.units import SECOND
from jsplan.workflows import drift_outputs
from jsplan.workflows.drift_outputs import DriftOutputs
from tests.support.listening_server import ListeningServer
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: Seconds. What the tests give an exchange, and what it takes on no machine but where it hangs.
DEADLINE, LONG = 0.1, 20.0


def alert_event(number: int = 1) -> AlertEvent:
    what = Alert("0123456789ab", "changed", "functional", "hub/stream/A", "was changed", ())
    return AlertEvent(
        f"0123456789ab.{number}",
        "opened",
        what,
        "shop",
        None,
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z",
    )


@pytest.fixture(autouse=True)
def deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short ones for every sink, and for the end of the job."""
    monkeypatch.setattr(webhooks, "POST_TIMEOUT", DEADLINE)
    monkeypatch.setattr(files, "WRITE_TIMEOUT", DEADLINE)
    monkeypatch.setattr(drift_outputs, "FINAL_DELIVERY_TIMEOUT", DEADLINE)


def count_threads(name: str) -> int:
    """How many threads have the name."""
    return sum(thread.name == name for thread in threading.enumerate())


async def wait_until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - nothing tells when it becomes true
        await asyncio.sleep(0.005)


def dripping(before: bytes) -> Callable[[ListeningServer, socket.socket], None]:
    """Take the request, begin an answer, and send a byte of it again and again."""

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        server.read(stream)
        stream.sendall(before)
        while not server.over.wait(DEADLINE / 10):
            stream.sendall(b"a")

    return serve


ANSWERS = {
    "headers": dripping(b"HTTP/1.1 200 OK\r\nX-A: "),
    "status": dripping(b"HTTP/1.1 "),
    "body": dripping(b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"),
    "nothing": lambda server, _: server.over.wait(),
    "refusal": dripping(b"HTTP/1.1 500 No\r\nContent-Length: 999\r\n\r\n"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_a_webhook_that_never_finishes(kind: str) -> None:
    """The deadline holds for the whole exchange; afterwards nothing of it is left, however often it is tried."""
    begun = time.monotonic()
    with ListeningServer(ANSWERS[kind]) as server:
        sink = Webhook(1, f"http://127.0.0.1:{server.port}/x", {})
        for _ in range(3):
            with pytest.raises(
                SinkError, match=r"webhook 1 (cannot be reached: no answer in time|answered 500)"
            ):
                await sink.send([alert_event()])
        await wait_until(lambda: count_threads("webhook 1") == 0)

    assert server.connections == 3
    assert time.monotonic() - begun < LONG


@pytest.mark.parametrize("scheme", ["https"])
async def test_a_webhook_whose_handshake_never_ends(scheme: str) -> None:
    """TLS is a part of the exchange."""
    with ListeningServer(dripping(b"\x16\x03\x03\x40\x00")) as server:
        with pytest.raises(SinkError, match="no answer in time"):
            await Webhook(1, f"{scheme}://127.0.0.1:{server.port}/x", {}).send([alert_event()])
        await wait_until(lambda: count_threads("webhook 1") == 0)


async def test_a_file_whose_disk_hangs(tmp_path: Path) -> None:
    """Each try ends in time, no second one begins while the first hangs, and once the disk answers all is written."""
    place = tmp_path / "drift.jsonl"
    os.mkfifo(
        place
    )  # opened for writing it waits for a reader, as a file of a network that is gone waits
    sink = FileSink(place)
    for number in range(3):
        with pytest.raises(SinkError, match="the disk did not answer"):
            await sink.send([alert_event(number)])
    assert count_threads("sink drift.jsonl") == 1
    with place.open("rb") as reader:
        first = await asyncio.to_thread(reader.readline)
        await wait_until(lambda: count_threads("sink drift.jsonl") == 0)

    assert b"0123456789ab.0" in first


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Files are replaced only once the event is set."""
    answers = threading.Event()

    def replace_file(path: Path, content: bytes, *, private: bool) -> None:
        answers.wait()
        disk.replace_file(path, content, private=private)

    monkeypatch.setattr(snapshot_file, "replace_file", replace_file)
    yield answers
    answers.set()


async def test_a_report_whose_disk_hangs(tmp_path: Path, hanging_disk: threading.Event) -> None:
    """It is a failure in words."""
    told: list[str | None] = []
    report = SnapshotFile(tmp_path / "r.md", lambda: b"x", lambda _, error: told.append(error))

    assert await report.write(DEADLINE) is False
    assert "the disk did not answer within 0.1 s" in str(told[0])
    hanging_disk.set()
    assert await report.write(30.0) is True
    assert (tmp_path / "r.md").read_bytes() == b"x"


class NullViews:
    """Prints nothing."""

    def notice(self, notice: AlertEvent) -> None:
        """Do nothing."""

    def report(self, *_: Any) -> bytes:
        """Give a report."""
        return b"x"


async def test_what_hangs_holds_up_neither_the_job_nor_its_end(
    tmp_path: Path, hanging_disk: threading.Event
) -> None:
    """Beside a webhook, a file and a report that hang the other sink has everything, threads are at hand, and the end comes."""
    report = tmp_path / "r.md"
    os.mkfifo(tmp_path / "hanging.jsonl")
    options = WatchOptions(Interval(3600 * SECOND), frozenset(), report=report)
    with ListeningServer(ANSWERS["headers"]) as server:
        sinks: list[Sink] = [
            Webhook(1, f"http://127.0.0.1:{server.port}/x", {}),
            FileSink(tmp_path / "hanging.jsonl"),
            FileSink(tmp_path / "good.jsonl"),
        ]
        outlets = DriftOutputs(sinks, options, "shop", NullViews(), RecordingObserver())
        async with outlets.open():
            outlets.update_report(Drift("", "", None, "", ""))
            outlets.publish([alert_event(number) for number in range(5)])
            good = tmp_path / "good.jsonl"
            await wait_until(lambda: good.exists() and good.read_text().count("\n") == 5)
            assert await asyncio.to_thread(lambda: "a thread") == "a thread"
            ending = time.monotonic()

    assert time.monotonic() - ending < LONG
    os.close(
        os.open(tmp_path / "hanging.jsonl", os.O_RDONLY | os.O_NONBLOCK)
    )  # so that no thread outlives the test


async def test_work_and_its_errors() -> None:
    """A worker returns what comes out, raises what goes wrong, and works again after a timeout."""
    worker, go = Worker("w"), threading.Event()

    assert await worker.run(lambda: 5, LONG) == 5
    with pytest.raises(KeyError):
        await worker.run(lambda: os.environ["JSPLAN_A"], LONG)
    with pytest.raises(TimeoutError):
        await worker.run(go.wait, DEADLINE)
    with pytest.raises(TimeoutError):
        await worker.run(lambda: 6, DEADLINE)
    assert count_threads("w") == 1
    go.set()
    assert await worker.run(lambda: 7, LONG) == 7
