"""The parser of the server protocol during a copy: buffers, and a closing connection."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from jsplan.backfill.protocol.connection import RawConnection
from jsplan.backfill.protocol.frames import (
    cut_messages,
    find_status_messages,
    parse_deliveries,
    scan_frames,
    scan_small_frames,
)
from jsplan.backfill.protocol.publisher import FencedPublisher
from jsplan.backfill.protocol.reader import ReadRequest, read
from jsplan.backfill.protocol.stream_info import count_pending, fetch_stream_info
from jsplan.jetstream.contexts import ConnectionSettings as Place
from tests.fuzz.document_run import Violation
from tests.fuzz.documents import Document
from tests.fuzz.harness import WRONG, Target

if TYPE_CHECKING:
    from tests.fuzz.document_run import DocumentRun

#: Seconds in which sent bytes arrive.
RECEIVE_TIMEOUT: Final = 0.01
#: Seconds for a greeting, whose bytes are all sent before.
GREETING_TIMEOUT: Final = 60.0
_INFO: Final = b'INFO {"server_id":"x","version":"2.12.0","headers":true,"max_payload":1048576,"domain":"hub"}\r\nPONG\r\n'
_ACK: Final = b"$JS.ACK.A.c.1.%d.%d.1700000000000000000.%d"
_LONG: Final = b"$JS.ACK.hub.HASH.A.c.1.%d.%d.1700000000000000000.%d.r4nd"


def _message(
    subject: bytes, reply: bytes, data: bytes, headers: bytes = b"", sid: int = 2
) -> bytes:
    size = len(headers) + len(data)
    if headers:
        return b"HMSG %s %d %s %d %d\r\n%s%s\r\n" % (
            subject,
            sid,
            reply,
            len(headers),
            size,
            headers,
            data,
        )
    return b"MSG %s %d %s%s%d\r\n%s\r\n" % (subject, sid, reply, b" " if reply else b"", size, data)


def _answer(number: int, body: bytes) -> bytes:
    return b"MSG {inbox}.r.%d 1 %d\r\n%s\r\n" % (number, len(body), body)


def seeds() -> list[Document]:
    """Return messages of every shape, with protocol lines between them, and conversations."""
    block = b"NATS/1.0\r\nNats-Msg-Id: x\r\nA: b\r\n\r\n"
    plain = b"".join(_message(b"A.x", _ACK % (n, n, 5 - n), b"data" * n) for n in range(1, 6))
    mixed = b"".join(
        _message(b"A.y", _LONG % (n, n, 5 - n), b"d" * n, block if n % 2 else b"")
        for n in range(1, 6)
    )
    ambiguous = _message(b"x", b"$JS.ACK.A.c.1.1.1.1700000000000000000.0@A", b"d") + _message(
        b"A@b", _ACK % (2, 2, 0), b"d"
    )
    with_protocol_lines = (
        _message(
            b"in",
            b"",
            b"",
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 5\r\nNats-Last-Stream: 5\r\n\r\n",
        )
        + b"PING\r\n+OK\r\n"
        + plain
    )
    consumer_created = _answer(
        1, b'{"name":"c","num_pending":5,"delivered":{"consumer_seq":0,"stream_seq":0}}'
    )
    stream_info = (
        b'{"config":{"name":"A"},"created":"c","state":{"first_seq":1,"last_seq":9,"messages":9}}'
    )
    refused = b'{"error":{"code":404,"err_code":10059,"description":"stream not found"}}'
    buffers = [
        {"$": b"frames", "bytes": buffer}
        for buffer in (plain, mixed, ambiguous, with_protocol_lines, plain + b"MSG A.x 1 10\r\n123")
    ]
    stored = (b'{"stream":"A","seq":%5d}' % number for number in (1, 2, 3))
    acks = b"".join(b"MSG {inbox}.a 2 %d\r\n%s\r\n" % (len(ack), ack) for ack in stored)
    no_responders = b"HMSG {inbox}.a 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"
    answers = _answer(1, stream_info) + _answer(2, b'{"num_pending":3}') + _answer(3, b"{}")
    conversations = [
        *((b"read", consumer_created + buffer) for buffer in (plain, mixed, with_protocol_lines)),
        *((kind, content) for kind, content in ((b"ask", answers), (b"write", acks))),
    ]
    wrong = [*((b"ask", _answer(1, body)) for body in (refused, b"[]")), (b"write", no_responders)]
    connections = [{"$": kind, "bytes": _INFO + content} for kind, content in conversations]
    connections += [{"$": kind, "bytes": _INFO + content, WRONG: b""} for kind, content in wrong]
    return [*buffers, *buffers, *connections]


def run(scene: DocumentRun) -> None:
    """Cut a buffer into messages, or let a connection read, request or write with it."""
    content = scene.part("bytes")
    if scene.command() == ["frames"]:
        _cut(content)
    else:
        {"read": _read, "ask": _ask, "write": _write}[scene.command()[0]](content)


def _cut(content: bytes) -> None:
    buffer = bytearray(content)
    frames = scan_frames(buffer, 0, len(buffer))
    _require_within(frames.offsets, len(buffer))
    small_frames = scan_small_frames(bytearray(content), 0, len(content))
    if small_frames is not None:
        _require_within(small_frames.offsets, len(content))
    if frames.count:
        messages = cut_messages(buffer, frames)
        if not len(find_status_messages(messages.headers)):
            parse_deliveries(messages)


def _require_within(offsets: Any, size: int) -> None:
    positions = [int(position) for position in offsets]
    if positions != sorted(positions) or any(
        position < 0 or position > size for position in positions
    ):
        raise Violation("a message has places outside of itself", str(positions[:40]))


class _Connection(RawConnection):
    """A connection whose server sends these bytes and nothing more."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        super().__init__(Place("main", "nats://127.0.0.1:1", "nats://127.0.0.1:1"))

    def _connect(self, _: str) -> socket.socket:
        near, far = socket.socketpair()
        for end in (near, far):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.other_end = far
        content = self.content.replace(b"{inbox}", self.inbox.encode())[: 1 << 17]
        cut = content.find(b"\r\n") + 2
        far.sendall(content[:cut])
        self.rest = content[cut:]
        if cut < 2:
            far.shutdown(socket.SHUT_WR)
        url = urlsplit("nats://127.0.0.1")
        return self._greet(near, "127.0.0.1", url, time.monotonic() + GREETING_TIMEOUT)

    def _read_info(self, stream: socket.socket, end: float) -> None:
        super()._read_info(stream, end)
        self.other_end.sendall(self.rest)
        if b"PONG\r\n" not in self.rest:
            self.other_end.shutdown(socket.SHUT_WR)  # end the greeting, or it waits

    def receive(self, into: memoryview, timeout: float) -> int:
        """Receive what was sent; nothing more comes."""
        return super().receive(into, min(timeout, RECEIVE_TIMEOUT))

    def close(self) -> None:
        super().close()
        self.other_end.close()


def _read(content: bytes) -> None:
    last = 0
    for batch in read(
        lambda: _Connection(content), ReadRequest("$JS.API", "A", 1, 5), patience=0.0
    ):
        for seq in batch.column(0).to_pylist():
            if seq <= last:
                raise Violation("messages come out of order", f"{seq} after {last}")
            last = seq


def _ask(content: bytes) -> None:
    wire = _Connection(content)
    try:
        stream_info = fetch_stream_info(wire, "$JS.API", "A")
        if not all(
            isinstance(number, int)
            for number in (stream_info.first, stream_info.last, stream_info.messages)
        ):
            raise Violation("a stream has a sequence that is no number", repr(stream_info))
        count_pending(wire, "$JS.API", "A", 1)
    finally:
        wire.close()


def _write(content: bytes) -> None:
    import pyarrow as pa  # noqa: PLC0415 - after the fork

    wire = _Connection(content)
    try:
        chain = FencedPublisher(wire, 0)
        for _ in range(3):
            chain.write(*(pa.array([value], pa.binary()) for value in (b"A.x", b"", b"data")))
        chain.finish()
    finally:
        wire.close()


TARGET: Final = Target(
    "wire", seeds, run, changes=lambda name: name == "bytes", form=lambda _: "bytes", share=4
)
