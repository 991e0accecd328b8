"""Publish Arrow batches to a stream: fenced and in order, or with one acknowledgement each.

`FencedPublisher` is fenced, `publish` is not. Both wait for the server: a server that receives
more than it can store drops messages without an acknowledgement, and only logs it (342 thousand of
a million, measured).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.protocol.connection import RECEIVE_BYTES, RawConnection
from jsplan.backfill.protocol.frames import (
    BYTES,
    ProtocolError,
    append_header_lines,
    build_frames,
    concat_rows,
    format_numbers,
    scan_frames,
)
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    NoRespondersError,
    RefusedError,
    ServerRefusedError,
)
from jsplan.resources.error_codes import WRONG_LAST_SEQUENCE

#: Limits of a chunk, and of unacknowledged chunks. They bound the memory on both sides, and stay
#: below the 10,000 pending messages above which a server drops messages for a stream.
CHUNK_MESSAGES, CHUNK_BYTES, MAX_CHUNKS_IN_FLIGHT = 1000, 2 << 20, 8
#: Seconds that the server may take to store a chunk.
STORE_TIMEOUT: Final = 60.0
#: Header with the sequence that must be the last one before the message.
FENCE_HEADER: Final = b"Nats-Expected-Last-Sequence: "
EXPECTED_STREAM_HEADER: Final = b"Nats-Expected-Stream: "
_LAST_SEQUENCE = re.compile(rb'"seq":\s*(\d{1,20})')


class PublishRefusedError(ServerRefusedError):
    """Error of a stream that did not store a message.

    `is_fenced`: the stream has another last sequence, so another process wrote to it.
    """

    @property
    def is_fenced(self) -> bool:
        """Return True if another process wrote to the stream, or an earlier message was lost."""
        return self.err_code == WRONG_LAST_SEQUENCE


class Destination(Struct, frozen=True):
    """Stream that is to store messages, and its JetStream domain (empty: any)."""

    stream: str
    domain: str = ""

    def require(self, ack: bytes) -> None:
        """Raise RefusedError for the answer of another stream or domain."""
        try:
            answer = orjson.loads(ack)
            stream = answer.get("stream", self.stream)
            domain = self.domain if "error" in answer else answer.get("domain", "")
        except (ValueError, AttributeError):
            raise ProtocolError(f"{ack[:80]!r} as the answer to a message") from None
        if stream != self.stream:
            text = f"stream {stream} takes the subjects of these messages, not stream {self.stream}"
        elif self.domain not in ("", domain):
            text = (
                f"stream {stream} of domain {domain or '(none)'} stored a message, "
                f"not that of domain {self.domain}"
            )
        else:
            return
        raise RefusedError(text, hint="Check the stream, its domain, and the subjects.")


class _AckReader:
    """Reader of acknowledgements, which arrive in the order of their messages."""

    def __init__(self, connection: RawConnection, expected: Destination | None = None) -> None:
        self._connection = connection
        self._expected = expected
        self.reply = f"{connection.inbox}.a"
        connection.subscribe(self.reply)
        self._unread = bytearray()
        self._piece = bytearray(RECEIVE_BYTES)
        self.count = 0
        self.last_sequence = 0
        self.duplicates = 0

    def wait(self) -> None:
        """Receive at least one acknowledgement.

        Raises PublishRefusedError for a refused message, and ApiTimeoutError where none arrives.
        """
        before = self.count
        while self.count == before:
            try:
                size = self._connection.receive(memoryview(self._piece), STORE_TIMEOUT)
            except TimeoutError:
                raise ApiTimeoutError(
                    f"{self._connection.target.shown} has stored no message "
                    f"for {STORE_TIMEOUT:.0f} s",
                    hint="The messages that it stored are kept. Check its limits and its leader "
                    "with jsplan status, then run the backfill again: it resumes.",
                ) from None
            self._unread += self._piece[:size]
            self._read_acks()

    def _read_acks(self) -> None:
        found = scan_frames(self._unread, 0, len(self._unread))
        self._connection.handle_control_lines(found.control)
        for headers, data, stop in zip(
            *(found.offsets[part::4] for part in (1, 2, 3)), strict=True
        ):
            self._handle_ack(bytes(self._unread[headers:data]), bytes(self._unread[data:stop]))
        del self._unread[: found.end]

    def _handle_ack(self, headers: bytes, body: bytes) -> None:
        if headers.startswith(b"NATS/1.0 503"):
            raise ApiError(
                "no stream takes these messages any more",
                hint="Check whether the target was deleted, or its subjects changed.",
            )
        if self._expected is not None:
            self._expected.require(body)
        if b'"error"' in body:
            raise _build_refusal(body)
        if match := _LAST_SEQUENCE.search(body):
            self.last_sequence = int(match[1])
        self.duplicates += b'"duplicate":true' in body or b'"duplicate": true' in body
        self.count += 1


def _build_refusal(body: bytes) -> ApiError:
    try:
        error = orjson.loads(body)["error"]
        return PublishRefusedError.of(
            f"the target refused a message: {error.get('description')} ({error.get('err_code')})",
            error,
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        return ProtocolError(f"{body[:80]!r} as the answer to a message")


def split_chunks(sizes: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yield row ranges of at most `CHUNK_MESSAGES` rows and `CHUNK_BYTES` bytes.

    A single larger row is a range of its own.
    """
    ends = np.cumsum(sizes)
    start, count = 0, len(sizes)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + CHUNK_MESSAGES, count))
        yield start, stop
        start = stop


class FencedPublisher:
    """Publisher to a stream that no other process writes to.

    Messages are fenced: a header names the sequence that must be the last one before them. After a
    lost message, the server refuses every fenced one. With `sparse` only the last message of each
    chunk is fenced, which proves everything before it. Otherwise each message is, and the stream
    always holds a prefix of what was sent. A second writer is not excluded: its messages fit after
    as many of the first. Each attempt therefore needs its own stream.

    `last` is the last acknowledged sequence of the stream. Subjects are published as `prefix` +
    subject.
    """

    def __init__(
        self, connection: RawConnection, last: int, prefix: bytes = b"", *, sparse: bool = False
    ) -> None:
        self.last = last
        self._sent = last
        self._connection = connection
        self._prefix = prefix
        self._sparse = sparse
        self._acks = _AckReader(connection)
        self._requested_acks = 0

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Publish the rows, in order. Returns when all but the last few chunks are stored.

        Raises PublishRefusedError and ApiError.
        """
        count = len(subject)
        if not count:
            return
        sizes = pc.add(pc.binary_length(headers), pc.binary_length(data)).to_numpy()
        cuts = list(split_chunks(sizes))
        ends = np.zeros(count, dtype=bool)
        ends[[stop - 1 for _, stop in cuts]] = True
        reply = pc.if_else(
            pa.array(ends),
            pa.scalar(b" " + self._acks.reply.encode(), BYTES),
            pa.scalar(b"", BYTES),
        )
        if self._sparse:
            frames, offsets = build_frames(
                subject, self._add_fences(headers, ends), data, prefix=self._prefix, reply=reply
            )
        else:
            frames, offsets = build_frames(
                subject,
                headers,
                data,
                prefix=self._prefix,
                reply=reply,
                lines=self._fence_lines(np.arange(count)),
            )
        for start, stop in cuts:
            self._connection.send(frames[offsets[start] : offsets[stop]])
            self._requested_acks += 1
            self._sent += stop - start
            while self._requested_acks - self._acks.count >= MAX_CHUNKS_IN_FLIGHT:
                self._wait_for_ack()

    def _fence_lines(self, rows: np.ndarray[Any, Any]) -> tuple[bytes, pa.BinaryArray, bytes]:
        return FENCE_HEADER, format_numbers(pa.array(self._sent + rows, pa.int64())), b"\r\n"

    def _add_fences(self, headers: pa.BinaryArray, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
        """Add the fence header to the header blocks at these rows."""
        mask = pa.array(ends)
        return pc.replace_with_mask(
            headers,
            mask,
            append_header_lines(headers.filter(mask), *self._fence_lines(np.flatnonzero(ends))),
        )

    def _wait_for_ack(self) -> None:
        self._acks.wait()
        self.last = self._acks.last_sequence

    def finish(self) -> int:
        """Wait until everything is stored, and return the last sequence of the stream."""
        while self._acks.count < self._requested_acks:
            self._wait_for_ack()
        return self.last


def wait_for_interest(
    connection: RawConnection, subject: str, patience: float = STORE_TIMEOUT
) -> None:
    """Wait until a stream takes messages on the subject.

    In a cluster, the interest of a new stream may arrive after the answer to its CREATE, and the
    server drops messages that are published before. The check publishes a message that the stream
    refuses. Raises ApiTimeoutError after `patience` seconds.
    """
    impossible = b"NATS/1.0\r\n%s%d\r\n\r\n" % (FENCE_HEADER, 1 << 62)
    end = time.monotonic() + patience
    while True:
        try:
            answer = connection.request(subject, timeout=min(2.0, patience), headers=impossible)
        except (NoRespondersError, ApiTimeoutError):
            answer = {}
        if answer.get("error"):
            return
        if time.monotonic() > end:
            raise ApiTimeoutError(
                f"no stream at {connection.target.shown} took {subject} within {patience:.0f} s",
                hint="Check the log of the server.",
            )
        time.sleep(0.02)


def publish(
    connection: RawConnection,
    batches: Iterable[tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]],
    window: int = 4000,
    *,
    destination: Destination | None = None,
    deduplicates: bool = False,
) -> int:
    """Publish rows of (subject, headers, data), at most `window` of them unacknowledged.

    Returns the number of messages. The first one is published alone, since it may reach another
    stream than `destination`. Raises RefusedError for that, and unless it `deduplicates`, for
    messages that the server took for stored ones by their `Nats-Msg-Id`. Raises
    PublishRefusedError and ApiError.
    """
    acks, sent = _AckReader(connection, destination), 0
    answer = concat_rows(b" ", pa.array([acks.reply.encode()], BYTES))[0]
    lines = (EXPECTED_STREAM_HEADER, destination.stream.encode(), b"\r\n") if destination else ()
    for subject, headers, data in batches:
        reply = pa.repeat(answer, len(subject))
        frames, offsets = build_frames(subject, headers, data, reply=reply, lines=lines)
        alone = 0 if sent else 1
        cuts = split_chunks(np.diff(offsets)[alone:])
        for start, stop in [(0, alone), *((start + alone, stop + alone) for start, stop in cuts)]:
            connection.send(frames[offsets[start] : offsets[stop]])
            sent += stop - start
            while sent - acks.count > (window if sent > 1 else 0):
                acks.wait()
    while acks.count < sent:
        acks.wait()
    if acks.duplicates and not deduplicates:
        raise RefusedError(
            f"{acks.duplicates:,} of {sent:,} messages were not stored: the server has messages "
            "with their Nats-Msg-Id"
        )
    return sent


__all__ = ["FencedPublisher", "PublishRefusedError", "publish", "split_chunks", "wait_for_interest"]
