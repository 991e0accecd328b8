"""Publishes Arrow batches to a stream: in order and fenced (`Chain`), or each message acknowledged (`publish`). What they hold, and
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

from jsplan.backfill.wire.frames import BYTES, GarbledError, digits, framed, joined, scan, with_headers
from jsplan.backfill.wire.socket import CHUNK, Wire
from jsplan.errors import ApiError, ApiTimeoutError, NoRespondersError, ServerRefusedError

#: A chunk ends after so many messages or bytes; so many may be under way. Together a bound of memory on both sides, and fewer messages
#: than the 10,000 above which a server drops what comes for a stream.
MESSAGES, SIZE, UNDER_WAY = 1000, 2 << 20, 8
#: How long the server may take to store a chunk. Seconds.
PATIENCE: Final = 60.0
WRONG_LAST_SEQUENCE: Final = 10071
#: The header with which a message says what must be before it.
LINK: Final = b"Nats-Expected-Last-Sequence: "
_LAST_SEQUENCE = re.compile(rb'"seq":\s*(\d{1,20})')


class Refused(ServerRefusedError):
    """The stream did not store a message. `fenced`: it is not where we thought, somebody else wrote to it."""

    @property
    def fenced(self) -> bool:
        """Whether another writer was there, or a message before was lost."""
        return self.err_code == WRONG_LAST_SEQUENCE


class _Acks:
    """Answers to publishes. They arrive in the order of what they answer."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self.reply = f"{wire.inbox}.a"
        wire.subscribe(self.reply)
        self._rest = bytearray()
        self._piece = bytearray(CHUNK)
        self.count = 0
        self.last_sequence = 0
        self.duplicates = 0

    def wait(self) -> None:
        """Take in at least one more answer. Raises Refused for one that says no, ApiTimeoutError where none comes."""
        before = self.count
        while self.count == before:
            try:
                size = self._wire.receive(memoryview(self._piece), PATIENCE)
            except TimeoutError:
                raise ApiTimeoutError(f"{self._wire.target.shown} stores nothing any more for {PATIENCE:.0f} s") from None
            self._rest += self._piece[:size]
            self._take()

    def _take(self) -> None:
        found = scan(self._rest, 0, len(self._rest))
        self._wire.control(found.control)
        for headers, data, stop in zip(*(found.offsets[part::4] for part in (1, 2, 3)), strict=True):
            self._one(bytes(self._rest[headers:data]), bytes(self._rest[data:stop]))
        del self._rest[: found.end]

    def _one(self, headers: bytes, body: bytes) -> None:
        if headers.startswith(b"NATS/1.0 503"):
            raise ApiError(
                "no stream takes these messages any more: nobody answers", hint="Was the target deleted, or its subjects changed?"
            )
        if b'"error"' in body:
            raise _refused(body)
        if match := _LAST_SEQUENCE.search(body):
            self.last_sequence = int(match[1])
        self.duplicates += b'"duplicate":true' in body or b'"duplicate": true' in body
        self.count += 1


def _refused(body: bytes) -> ApiError:
    try:
        error = orjson.loads(body)["error"]
        return Refused.of(f"the target refused a message: {error.get('description')} ({error.get('err_code')})", error)
    except (ValueError, LookupError, TypeError, AttributeError):
        return GarbledError(f"{body[:80]!r} as the answer to a message")


def chunks(sizes: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Row ranges of at most `MESSAGES` rows and, but for a single larger one, `SIZE` bytes."""
    ends = np.cumsum(sizes)
    start, count = 0, len(sizes)
    while start < count:
        before = int(ends[start - 1]) if start else 0
        stop = int(np.searchsorted(ends, before + SIZE, side="right"))
        stop = max(start + 1, min(stop, start + MESSAGES, count))
        yield start, stop
        start = stop


class Chain:
    """Writes to a stream that nobody else writes to. Messages say which sequence must be the last before them.

    A message that is lost breaks the chain: what says so is refused from there on. With `sparse` the last message of each chunk says it,
    and with that everything before it is proven; otherwise each does, and the stream is always an exact beginning of what was sent. That
    keeps no second writer out, whose messages fit again behind as many of the first: each attempt needs a stream of its own. `last` is
    the stream's last sequence, as far as it is acknowledged. Messages are published to `prefix` + subject.
    """

    def __init__(self, wire: Wire, last: int, prefix: bytes = b"", *, sparse: bool = False) -> None:
        self.last = last
        self._sent = last
        self._wire = wire
        self._prefix = prefix
        self._sparse = sparse
        self._acks = _Acks(wire)
        self._asked = 0

    def write(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        """Publish the rows, in order. Comes back when all but the last few chunks are stored. Raises Refused and ApiError."""
        count = len(subject)
        if not count:
            return
        sizes = pc.add(pc.binary_length(headers), pc.binary_length(data)).to_numpy()
        cuts = list(chunks(sizes))
        ends = np.zeros(count, dtype=bool)
        ends[[stop - 1 for _, stop in cuts]] = True
        reply = pc.if_else(pa.array(ends), pa.scalar(b" " + self._acks.reply.encode(), BYTES), pa.scalar(b"", BYTES))
        if self._sparse:
            frames, offsets = framed(subject, self._linked(headers, ends), data, prefix=self._prefix, reply=reply)
        else:
            frames, offsets = framed(subject, headers, data, prefix=self._prefix, reply=reply, lines=self._links(np.arange(count)))
        for start, stop in cuts:
            self._wire.send(frames[offsets[start] : offsets[stop]])
            self._asked += 1
            self._sent += stop - start
            while self._asked - self._acks.count >= UNDER_WAY:
                self._wait()

    def alone(self, subject: bytes, headers: bytes, data: bytes) -> int:
        """Publish one message with nothing but what it has; everything before it is stored when it goes out, and it when this comes back.

        Its sequence. Raises Refused and ApiError.
        """
        self.finish()
        to = b"%s%s %s" % (self._prefix, subject, self._acks.reply.encode())
        size = len(headers) + len(data)
        line = b"HPUB %s %d %d\r\n" % (to, len(headers), size) if headers else b"PUB %s %d\r\n" % (to, size)
        self._wire.send(line + headers + data + b"\r\n")
        self._asked += 1
        self._sent = self.finish()
        return self._sent

    def _links(self, rows: np.ndarray[Any, Any]) -> tuple[bytes, pa.BinaryArray, bytes]:
        return LINK, digits(pa.array(self._sent + rows, pa.int64())), b"\r\n"

    def _linked(self, headers: pa.BinaryArray, ends: np.ndarray[Any, Any]) -> pa.BinaryArray:
        """Header blocks of which these have the link."""
        mask = pa.array(ends)
        return pc.replace_with_mask(headers, mask, with_headers(headers.filter(mask), *self._links(np.flatnonzero(ends))))

    def _wait(self) -> None:
        self._acks.wait()
        self.last = self._acks.last_sequence

    def finish(self) -> int:
        """Wait until everything is stored; the stream's last sequence then."""
        while self._acks.count < self._asked:
            self._wait()
        return self.last


def await_taker(wire: Wire, subject: str, patience: float = PATIENCE) -> None:
    """Wait until a stream takes what is published there. In a cluster the interest of a new one may come after the answer to its
    CREATE, by another route, and what is published before is dropped. Asked with a message that is refused.

    Raises ApiTimeoutError after `patience` seconds.
    """
    impossible = b"NATS/1.0\r\n%s%d\r\n\r\n" % (LINK, 1 << 62)
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
                f"no stream at {wire.target.shown} takes {subject} for {patience:.0f} s", hint="Look at the server's log."
            )
        time.sleep(0.02)


def publish(wire: Wire, batches: Iterable[tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]], window: int = 4000) -> tuple[int, int]:
    """Publish rows of (subject, headers, data), each acknowledged, at most `window` of them under way.

    How many were sent, and how many of them the server knew already by their `Nats-Msg-Id`. Raises Refused and ApiError.
    """
    acks, sent = _Acks(wire), 0
    answer = joined(b" ", pa.array([acks.reply.encode()], BYTES))[0]
    for subject, headers, data in batches:
        reply = pa.repeat(answer, len(subject))
        frames, offsets = framed(subject, headers, data, reply=reply)
        for start, stop in chunks(np.diff(offsets)):
            wire.send(frames[offsets[start] : offsets[stop]])
            sent += stop - start
            while sent - acks.count > window:
                acks.wait()
    while acks.count < sent:
        acks.wait()
    return sent, acks.duplicates


__all__ = ["Chain", "Refused", "await_taker", "chunks", "publish"]
