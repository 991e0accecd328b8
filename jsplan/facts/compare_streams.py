"""Comparison of two streams by content: sequence, subject, headers, payload and time.

It reads pages of both at once, in the order of their sequences, and never through a consumer.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from typing import Any, Final, NamedTuple

from msgspec import Struct, field

from jsplan.errors import ApiTimeoutError
from jsplan.facts.messages import open_pages
from jsplan.facts.pages import (
    NO_HEADERS,
    OWN_HEADERS,
    PageReader,
    ReadBudget,
    ReadLimitExceeded,
    stored_headers,
)
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import message_headers
from jsplan.units import parse_instant

#: Messages of one page: more than other readers take, since each page costs a round trip.
PAGE_MESSAGES: Final = 4_000
#: Bytes of a payload above which its digest is kept.
LONG_PAYLOAD: Final = 4 << 10
#: The lines that a server adds to a message: its stream, subject, sequence and time.
_OWN_LINES: Final = re.compile(
    rb"\r\nNats-Stream: ([^\r]+)\r\nNats-Subject: ([^\r]+)\r\nNats-Sequence: (\d{1,20})\r\n"
    rb"Nats-Time-Stamp: ([^\r]+)\r\n"
)
#: Deleted sequences whose list is requested. A stream with more is compared in batches only.
MAX_GAPS: Final = 100_000
#: Ranges of differences that are kept. Sequences beyond them are only counted.
MAX_RANGES: Final = 100_000


#: The API of a domain, INFO of the stream, and the API level of its server.
Side = tuple[DomainApi, Mapping[str, Any], int]


class Sequences(Struct):
    """Sequences that were added in rising order: `count` of them, and their ranges.

    There are at most `MAX_RANGES` ranges; `omitted` are the sequences after the last one.
    """

    count: int = 0
    omitted: int = 0
    ranges: list[tuple[int, int]] = field(default_factory=list)

    def add(self, seq: int) -> None:
        """Add a sequence that is greater than all others."""
        self.add_range(seq, seq)

    def add_range(self, first: int, last: int) -> None:
        """Add sequences that are greater than all others."""
        self.count += last - first + 1
        if self.ranges and self.ranges[-1][1] == first - 1 and not self.omitted:
            self.ranges[-1] = self.ranges[-1][0], last
        elif len(self.ranges) < MAX_RANGES:
            self.ranges.append((first, last))
        else:
            self.omitted += last - first + 1

    def add_all(self, later: Sequences) -> None:
        """Add sequences of which each is greater than all others."""
        for span in later.ranges:
            self.add_range(*span)
        self.count += later.omitted
        self.omitted += later.omitted

    @property
    def first(self) -> int | None:
        """The first sequence; None for none."""
        return self.ranges[0][0] if self.ranges else None

    def __iter__(self) -> Iterator[int]:
        """Iterate over the sequences of the ranges."""
        return chain.from_iterable(range(first, last + 1) for first, last in self.ranges)


class Comparison(Struct):
    """Differences of a copy: messages that it lacks, that differ, and that only it has.

    `messages` were compared. Where messages name their origin, these are sequences of that: `twice`
    are those that the copy has again, and `places` are ranges of those that only it has, each with
    the sequence of its first message in the copy.
    """

    messages: int = 0
    missing: Sequences = field(default_factory=Sequences)
    different: Sequences = field(default_factory=Sequences)
    extra: Sequences = field(default_factory=Sequences)
    twice: Sequences = field(default_factory=Sequences)
    places: list[tuple[int, int, int]] = field(default_factory=list)

    def add_extra(self, first: int, last: int, place: int) -> None:
        """Add sequences that are greater than all others, and are in a row in the copy too."""
        self.extra.add_range(first, last)
        if self.places:
            begun, end, begun_at = self.places[-1]
            if end == first - 1 and place - begun_at == first - begun:
                self.places[-1] = begun, last, begun_at
                return
        self.places.append((first, last, place))

    def add_all(self, later: Comparison) -> None:
        """Add the result of a later range by sequence."""
        self.messages += later.messages
        for name in ("missing", "different", "extra", "twice"):
            getattr(self, name).add_all(getattr(later, name))


class IncomparableError(Exception):
    """A stream without `allow_direct` whose messages cannot be read one by one."""


class Content(NamedTuple):
    """All that is stored of one message.

    `time` is RFC 3339. A long payload is kept as its digest. `size` is 0: a comparison has no limit
    of reads.
    """

    seq: int
    time: bytes
    subject: bytes
    payload: bytes | str
    headers: bytes
    size: int = 0


class ContentReader(PageReader[Content]):
    """Pages of messages with their content."""

    page_messages = PAGE_MESSAGES

    def _charge(self, messages: list[Content]) -> None:
        """Count nothing: each message is read."""

    def _from_json(self, message: dict[str, Any]) -> Content:
        payload = base64.b64decode(message.get("data") or "")
        time, subject = message["time"].encode(), message["subject"].encode()
        headers = message_headers(message)
        return Content(message["seq"], time, subject, _short(payload), headers)

    def _from_batch(self, block: bytes, payload: bytes) -> Content:
        return self._parse_batch([(block, payload)])[0][0]

    def _parse_batch(self, answers: Sequence[tuple[bytes, bytes]]) -> tuple[list[Content], bool]:
        """Parse a batch in one loop: this is most of the time of a comparison."""
        found, streams, match = list[Content](), set[bytes](), _OWN_LINES.match
        for block, payload in answers:
            at = block.rfind(OWN_HEADERS)
            own = match(block, at) if at > 0 else None
            if own is None:
                raise ValueError(block[:80])
            stream, subject, seq, time = own.groups()
            streams.add(stream)
            kept = payload if len(payload) <= LONG_PAYLOAD else _short(payload)
            headers = stored_headers(block) if at > NO_HEADERS else b""
            found.append(Content(int(seq), time, subject, kept, headers))
        return found, streams <= {self.stream.encode()}


def _short(payload: bytes) -> bytes | str:
    """Return a payload, or the digest of a long one: a page of many must fit into memory."""
    if len(payload) <= LONG_PAYLOAD:
        return payload
    return hashlib.blake2b(payload, digest_size=32).hexdigest()


def _are_equal(one: Content, other: Content) -> bool:
    """Compare two messages of one sequence, with the headers that servers keep in a mirror."""
    return one == other or (
        (one.subject, one.payload) == (other.subject, other.payload)
        and _have_same_time(one, other)
        and _without_conditions(one.headers) == _without_conditions(other.headers)
    )


def _have_same_time(one: Content, other: Content) -> bool:
    try:
        return one.time == other.time or parse_instant(one.time.decode()) == parse_instant(
            other.time.decode()
        )
    except ValueError:
        return False


def _without_conditions(headers: bytes) -> bytes:
    """Return headers without the conditions of the publish, which servers remove in a mirror."""
    head, *lines = headers.split(b"\r\n")
    kept = [line for line in lines if line and not line.startswith(b"Nats-Expected-")]
    return b"\r\n".join((head, *kept)) if kept else b""


class _Side:
    """One side of a comparison: a page, and the next one, which is read meanwhile."""

    def __init__(self, reader: ContentReader, first: int) -> None:
        self.page: list[Content] = []
        self._reader, self._start = reader, first
        self._next = asyncio.create_task(self._read())

    async def _read(self) -> list[Content]:
        while self._start <= self._reader.last:
            page, self._start = await self._reader.read_page(self._start, self._reader.last)
            if page:
                return page
        return []

    async def turn(self) -> None:
        """Take the next page; an empty one is the end. Raises what `read_page` raises."""
        self.page = await self._next
        self._next = asyncio.create_task(self._read())

    async def close(self) -> None:
        """End the reading."""
        self._next.cancel()
        await asyncio.gather(self._next, return_exceptions=True)


async def open_contents(
    api: DomainApi, info: Mapping[str, Any], level: int, last: int
) -> ContentReader:
    """Open a reader of all messages up to `last`. Raises ApiError."""
    reader = await open_pages(ContentReader, api, info, level, MAX_GAPS)
    reader.budget, reader.last = ReadBudget(sys.maxsize), min(reader.last, last)
    return reader


async def compare_streams(origin: Side, copy: Side, first: int, last: int) -> Comparison:
    """Compare the messages of two streams from `first` to `last`, both inclusive.

    Raises ApiError, and IncomparableError for a stream without `allow_direct` with more than
    `MAX_GAPS` deleted messages, or with one that is larger than a leaf node link lets pass: in an
    answer to MSG.GET a message has a third more bytes, and the server sends none that exceeds
    `max_payload`.
    """
    found = Comparison()
    try:
        async with AsyncExitStack() as opened:
            sides = []
            for api, info, level in (origin, copy):
                reader = await open_contents(api, info, level, last)
                sides.append(_Side(reader, max(first, reader.first)))
                opened.push_async_callback(sides[-1].close)
            await _merge(found, *sides)
    except ReadLimitExceeded:
        why = "too many deleted messages to be compared without allow_direct"
        raise IncomparableError(why) from None
    except ApiTimeoutError:
        if all(info["config"].get("allow_direct") for _, info, _ in (origin, copy)):
            raise
        for api, info, _ in (origin, copy):
            await api.request(f"STREAM.INFO.{info['config']['name']}")
        why = "a message that is too large to be read over the link without allow_direct"
        raise IncomparableError(why) from None
    return found


async def _merge(found: Comparison, left: _Side, right: _Side) -> None:
    """Compare page by page. What one page has beyond the other waits for its next one."""
    at = other_at = 0
    while True:
        if at == len(left.page):
            await left.turn()
            at = 0
        if other_at == len(right.page):
            await right.turn()
            other_at = 0
        if not left.page or not right.page:
            break
        at, other_at = _compare_pages(found, left.page, at, right.page, other_at)
    await _add_rest(found.missing, left, at)
    await _add_rest(found.extra, right, other_at)


async def _add_rest(differing: Sequences, side: _Side, at: int) -> None:
    """Add what one side has from this place on, after the end of the other side."""
    while side.page:
        for message in side.page[at:]:
            differing.add(message.seq)
        await side.turn()
        at = 0


def compare_lists(found: Comparison, left: list[Content], right: list[Content]) -> None:
    """Compare all messages of one range of sequences of both sides."""
    at, other_at = _compare_pages(found, left, 0, right, 0)
    for message in left[at:]:
        found.missing.add(message.seq)
    for message in right[other_at:]:
        found.extra.add(message.seq)


def _compare_pages(
    found: Comparison, left: list[Content], at: int, right: list[Content], other_at: int
) -> tuple[int, int]:
    """Compare two pages from these places on until one ends. Return the new places."""
    count = min(len(left) - at, len(right) - other_at)
    if left[at : at + count] == right[other_at : other_at + count]:
        found.messages += count
        return at + count, other_at + count
    while at < len(left) and other_at < len(right):
        one, other = left[at], right[other_at]
        if one.seq < other.seq:
            found.missing.add(one.seq)
            at += 1
        elif other.seq < one.seq:
            found.extra.add(other.seq)
            other_at += 1
        else:
            found.messages += 1
            if not _are_equal(one, other):
                found.different.add(one.seq)
            at, other_at = at + 1, other_at + 1
    return at, other_at
