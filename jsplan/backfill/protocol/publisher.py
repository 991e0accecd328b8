"""Publishes Arrow batches to a stream: in order and fenced (`FencedPublisher`), or each message acknowledged (`publish`). What they hold, and
where a copy that broke off goes on, is left to the caller.

Never without waiting: a server that gets more than it can store drops what nobody waits for, with a line in its log and no word to
the publisher (342 thousand of a million, measured).
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
from jsplan.errors import ApiError, ApiTimeoutError, NoRespondersError, ServerRefusedError

#: A chunk ends after so many messages or bytes; so many may be under way. Together a bound of memory on both sides, and fewer messages
#: than the 10,000 above which a server drops what comes for a stream.
CHUNK_MESSAGES, CHUNK_BYTES, MAX_CHUNKS_IN_FLIGHT = 1000, 2 << 20, 8
#: How long the server may take to store a chunk. Seconds.
STORE_TIMEOUT: Final = 60.0
WRONG_LAST_SEQUENCE: Final = 10071
#: The header with which a message says what must be before it.
FENCE_HEADER: Final = b"Nats-Expected-Last-Sequence: "
_LAST_SEQUENCE = re.compile(rb'"seq":\s*(\d{1,20})')


class PublishRefusedError(ServerRefusedError):
    """The stream did not store a message. `is_fenced`: it is not where we thought, somebody else wrote to it."""

    @property
    def is_fenced(self) -> bool:
        """Whether another writer was there, or a message before was lost."""
        return self.err_code == WRONG_LAST_SEQUENCE


class _AckReader:
    """Answers to publishes. They arrive in the order of what they answer."""

    def __init__(self, wire: RawConnection) -> None:
        self._connection = wire
        self.reply = f"{wire.inbox}.a"
        wire.subscribe(self.reply)
        self._unread = bytearray()
        self._piece = bytearray(RECEIVE_BYTES)
        self.count = 0
        self.last_sequence = 0
        self.duplicates = 0

    def wait(self) -> None:
        """Take in at least one more answer. Raises Refused for one that says no, ApiTimeoutError where none comes."""
        before = self.count
        while self.count == before:
            try:
                size = self._connection.receive(memoryview(self._piece), STORE_TIMEOUT)
            except TimeoutError:
                raise ApiTimeoutError(
                    f"{self._connection.target.shown} stores nothing any more for {STORE_TIMEOUT:.0f} s"
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
                "no stream takes these messages any more: nobody answers",
                hint="Was the target deleted, or its subjects changed?",
            )
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
    """Row ranges of at most `CHUNK_MESSAGES` rows and, but for a single larger one, `CHUNK_BYTES` bytes."""
    ends = np.cumsum(sizes)
    start, count = 0, len(sizes)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + CHUNK_BYTES, side="right"))
        stop = max(start + 1, min(stop, start + CHUNK_MESSAGES, count))
        yield start, stop
        start = stop


class FencedPublisher:
    """Writes to a stream that nobody else writes to. Messages say which sequence must be the last before them.

    A message that is lost breaks the chain: what says so is refused from there on. With `sparse` the last message of each chunk says it,
    and with that everything before it is proven; otherwise each does, and the stream is always an exact beginning of what was sent. That
    keeps no second writer out, whose messages fit again behind as many of the first: each attempt needs a stream of its own. `last` is
    the stream's last sequence, as far as it is acknowledged. Messages are published to `prefix` + subject.
    """

    def __init__(
        self, wire: RawConnection, last: int, prefix: bytes = b"", *, sparse: bool = False
    ) -> None:
        self.last = last
        self._sent = last
        self._connection = wire
        self._prefix = prefix
        self._sparse = sparse
        self._acks = _AckReader(wire)
        self._requested_acks = 0

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Publish the rows, in order. Comes back when all but the last few chunks are stored. Raises Refused and ApiError."""
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

    def write_one(self, subject: bytes, headers: bytes, data: bytes) -> int:
        """Publish one message with nothing but what it has; everything before it is stored when it goes out, and it when this comes back.

        Its sequence. Raises Refused and ApiError.
        """
        self.finish()
        to = b"%s%s %s" % (self._prefix, subject, self._acks.reply.encode())
        size = len(headers) + len(data)
        line = (
            b"HPUB %s %d %d\r\n" % (to, len(headers), size)
            if headers
            else b"PUB %s %d\r\n" % (to, size)
        )
        self._connection.send(line + headers + data + b"\r\n")
        self._requested_acks += 1
        self._sent = self.finish()
        return self._sent

    def _fence_lines(self, rows: np.ndarray[Any, Any]) -> tuple[bytes, pa.BinaryArray, bytes]:
        return FENCE_HEADER, format_numbers(pa.array(self._sent + rows, pa.int64())), b"\r\n"

    def _add_fences(self, headers: pa.BinaryArray, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
        """Header blocks of which these have the link."""
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
        """Wait until everything is stored; the stream's last sequence then."""
        while self._acks.count < self._requested_acks:
            self._wait_for_ack()
        return self.last


def wait_for_interest(wire: RawConnection, subject: str, patience: float = STORE_TIMEOUT) -> None:
    """Wait until a stream takes what is published there. In a cluster the interest of a new one may come after the answer to its
    CREATE, by another route, and what is published before is dropped. Asked with a message that is refused.

    Raises ApiTimeoutError after `patience` seconds.
    """
    impossible = b"NATS/1.0\r\n%s%d\r\n\r\n" % (FENCE_HEADER, 1 << 62)
    end = time.monotonic() + patience
    while True:
        try:
            answer = wire.request(subject, timeout=min(2.0, patience), headers=impossible)
        except (NoRespondersError, ApiTimeoutError):
            answer = {}
        if answer.get("error"):
            return
        if time.monotonic() > end:
            raise ApiTimeoutError(
                f"no stream at {wire.target.shown} takes {subject} for {patience:.0f} s",
                hint="Look at the server's log.",
            )
        time.sleep(0.02)


def publish(
    wire: RawConnection,
    batches: Iterable[tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]],
    window: int = 4000,
) -> tuple[int, int]:
    """Publish rows of (subject, headers, data), each acknowledged, at most `window` of them under way.

    How many were sent, and how many of them the server knew already by their `Nats-Msg-Id`. Raises Refused and ApiError.
    """
    acks, sent = _AckReader(wire), 0
    answer = concat_rows(b" ", pa.array([acks.reply.encode()], BYTES))[0]
    for subject, headers, data in batches:
        reply = pa.repeat(answer, len(subject))
        frames, offsets = build_frames(subject, headers, data, reply=reply)
        for start, stop in split_chunks(np.diff(offsets)):
            wire.send(frames[offsets[start] : offsets[stop]])
            sent += stop - start
            while sent - acks.count > window:
                acks.wait()
    while acks.count < sent:
        acks.wait()
    return sent, acks.duplicates


__all__ = ["FencedPublisher", "PublishRefusedError", "publish", "split_chunks", "wait_for_interest"]
