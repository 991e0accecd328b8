from __future__ import annotations

import asyncio
import os
import threading
import time
from typing import TYPE_CHECKING

import pytest

from jsplan.documents.alert import Alert, AlertEvent
from jsplan.drift.service import outputs as job_outputs
from jsplan.drift.service import sinks as files
from jsplan.drift.service import sinks as webhooks
from jsplan.drift.service.options import Interval, WatchOptions
from jsplan.drift.service.outputs import DriftOutputs
from jsplan.drift.service.sinks import FileSink, Sink, SinkError, Webhook
from jsplan.drift.service.worker import Worker
from jsplan.units import SECOND
from tests.support.listening_server import ListeningServer
from tests.support.waiting import await_until
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable
    from pathlib import Path

#: Seconds: the deadline of an exchange, and a time that is reached only where it hangs.
DEADLINE, LONG = 0.1, 20.0


def alert_event(number: int = 1) -> AlertEvent:
    alert = Alert("0123456789ab", "changed", "functional", "hub/stream/A", "was changed", ())
    return AlertEvent(
        f"0123456789ab.{number}",
        "opened",
        alert,
        "shop",
        None,
        "2026-01-31T12:00:00Z",
        "2026-01-31T12:00:00Z",
    )


@pytest.fixture(autouse=True)
def deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short deadlines for every sink and for the end of the job."""
    monkeypatch.setattr(webhooks, "POST_TIMEOUT", DEADLINE)
    monkeypatch.setattr(files, "WRITE_TIMEOUT", DEADLINE)
    monkeypatch.setattr(job_outputs, "FINAL_DELIVERY_TIMEOUT", DEADLINE)


def count_threads(name: str) -> int:
    """Return the number of threads with this name."""
    return sum(thread.name == name for thread in threading.enumerate())


def dripping(before: bytes) -> Callable[[ListeningServer, socket.socket], None]:
    """Take the request, begin an answer, and send one byte of it again and again."""

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
    """The deadline holds for the whole exchange, and no thread of it is left."""
    begun = time.monotonic()
    with ListeningServer(ANSWERS[kind]) as server:
        sink = Webhook(1, f"http://127.0.0.1:{server.port}/x", {})
        for _ in range(3):
            with pytest.raises(
                SinkError, match=r"webhook 1 (cannot be reached: no answer in time|answered 500)"
            ):
                await sink.send([alert_event()])
        await await_until(lambda: count_threads("webhook 1") == 0)

    assert server.connections == 3
    assert time.monotonic() - begun < LONG


@pytest.mark.parametrize("scheme", ["https"])
async def test_a_webhook_whose_handshake_never_ends(scheme: str) -> None:
    """The deadline covers the TLS handshake."""
    with ListeningServer(dripping(b"\x16\x03\x03\x40\x00")) as server:
        with pytest.raises(SinkError, match="no answer in time"):
            await Webhook(1, f"{scheme}://127.0.0.1:{server.port}/x", {}).send([alert_event()])
        await await_until(lambda: count_threads("webhook 1") == 0)


async def test_a_file_whose_disk_hangs(tmp_path: Path) -> None:
    """Each try ends in time, only one hangs at a time, and the file is written in the end."""
    file = tmp_path / "drift.jsonl"
    # Opening a pipe waits for a reader, like a file of a network file system that is gone.
    os.mkfifo(file)
    sink = FileSink(file)
    for number in range(3):
        with pytest.raises(SinkError, match="the disk did not answer"):
            await sink.send([alert_event(number)])
    assert count_threads("sink drift.jsonl") == 1
    with file.open("rb") as reader:
        first = await asyncio.to_thread(reader.readline)
        await await_until(lambda: count_threads("sink drift.jsonl") == 0)

    assert b"0123456789ab.0" in first


class NullViews:
    """Views that print nothing."""

    def notice(self, notice: AlertEvent) -> None:
        """Do nothing."""


async def test_hanging_outputs_delay_neither_the_job_nor_its_end(tmp_path: Path) -> None:
    """The other sink receives everything, and the job ends, while two outputs hang."""
    os.mkfifo(tmp_path / "hanging.jsonl")
    options = WatchOptions(Interval(3600 * SECOND), frozenset())
    with ListeningServer(ANSWERS["headers"]) as server:
        sinks: list[Sink] = [
            Webhook(1, f"http://127.0.0.1:{server.port}/x", {}),
            FileSink(tmp_path / "hanging.jsonl"),
            FileSink(tmp_path / "good.jsonl"),
        ]
        outputs = DriftOutputs(sinks, options, "shop", NullViews(), RecordingObserver())
        async with outputs.open():
            outputs.publish([alert_event(number) for number in range(5)])
            good = tmp_path / "good.jsonl"
            await await_until(lambda: good.exists() and good.read_text().count("\n") == 5)
            assert await asyncio.to_thread(lambda: "a thread") == "a thread"
            ending = time.monotonic()

    assert time.monotonic() - ending < LONG
    # So that no thread outlives the test.
    os.close(os.open(tmp_path / "hanging.jsonl", os.O_RDONLY | os.O_NONBLOCK))


async def test_a_worker_returns_and_raises() -> None:
    """A worker returns the result, raises the error, and works again after a timeout."""
    worker, may_end = Worker("w"), threading.Event()

    assert await worker.run(lambda: 5, LONG) == 5
    with pytest.raises(KeyError):
        await worker.run(lambda: os.environ["JSPLAN_A"], LONG)
    with pytest.raises(TimeoutError):
        await worker.run(may_end.wait, DEADLINE)
    with pytest.raises(TimeoutError):
        await worker.run(lambda: 6, DEADLINE)
    assert count_threads("w") == 1
    may_end.set()
    assert await worker.run(lambda: 7, LONG) == 7
