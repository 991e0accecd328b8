"""Comparison of a stream with a copy whose messages name their origin, in any order."""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import AsyncIterator
from typing import Final

from jsplan.comparing.relation import Relation
from jsplan.errors import RefusedError
from jsplan.facts.compare_streams import Comparison, Content, Side, open_contents
from jsplan.resources.source_header import (
    KEPT_PREFIX,
    ORIGIN_HEADER,
    SOURCE_HEADER,
    parse_source_header,
)
from jsplan.subjects import passes_filters
from jsplan.units import count_text

#: Messages of a copy that are kept in memory, about 150 bytes each.
MAX_KEPT: Final = 10_000_000
_TAG: Final = re.compile(rf"\r\n{ORIGIN_HEADER}: ?([^/\r]+/[^/\r]+)/(\d{{1,18}})/".encode())
_KEPT: Final = KEPT_PREFIX.encode()
#: Lines that a copy adds, or that servers remove in one.
_LEFT_OUT: Final = (
    f"{SOURCE_HEADER}:".encode(),
    f"{ORIGIN_HEADER}:".encode(),
    f"{KEPT_PREFIX}Origin:".encode(),
    b"Nats-Expected-",
)


async def compare_by_header(
    relation: Relation, origin: Side, copy: Side, span: tuple[int, int], copy_first: int = 1
) -> Comparison:
    """Compare messages of the origin within `span` with those of the copy that name them.

    Those of the copy are read from `copy_first` on. A message after the end that the origin had is
    only looked for where the copy has it, and not counted. Raises RefusedError for too many
    messages, ReadLimitExceeded and ApiError.
    """
    found, known, twice = Comparison(), dict[int, tuple[bytes, int]](), set[int]()
    first, end = span
    last = last_to_match(relation, end)
    async for message in _read(copy, copy_first, sys.maxsize):
        seq = origin_seq(message, relation)
        if seq is None or not first <= seq <= last:
            continue
        if seq in known:
            twice.add(seq)
            continue
        if len(known) == MAX_KEPT:
            raise RefusedError(
                f"{relation.copy.address} has more than {count_text(MAX_KEPT, 'message')} of "
                f"{relation.origin.address}",
                hint="Compare them in parts (--first-seq and --last-seq are those of the origin), "
                "or on a Spark cluster with --master.",
            )
        known[seq] = message_digest(message, relation), message.seq
    async for message in _read(origin, first, last):
        copied = known.pop(message.seq, None)
        if copied is not None:
            found.messages += message.seq <= end
            if copied[0] != message_digest(message, relation):
                found.different.add(message.seq)
        elif message.seq <= end and passes_filters(message.subject.decode(), relation.filters):
            found.missing.add(message.seq)
    for seq in sorted(known):
        found.add_extra(seq, seq, known[seq][1])
    for seq in sorted(twice):
        found.twice.add(seq)
    return found


def last_to_match(relation: Relation, end: int) -> int:
    """Return the last sequence that counts in a comparison up to `end`.

    All that a copy names counts, if `end` is the end of the origin: it may have lost messages.
    """
    return end if end < int(relation.origin.state.get("last_seq") or 0) else sys.maxsize


async def _read(side: Side, first: int, last: int) -> AsyncIterator[Content]:
    reader = await open_contents(*side, last)
    async for message in reader.read_forward(max(first, reader.first)):
        yield message


def origin_seq(message: Content, relation: Relation) -> int | None:
    """Return the sequence of the origin that a message of the copy names, or None."""
    tag = _TAG.search(message.headers)
    if tag is not None:
        return int(tag[2]) if tag[1].decode(errors="replace") in relation.tags else None
    header = parse_source_header(message.headers)
    return header.seq if header is not None and header.source.stream in relation.names else None


def message_digest(message: Content, relation: Relation) -> bytes:
    """Return a digest of subject, headers and payload: a copy has another time."""
    payload = message.payload
    parts = (
        b"" if relation.renames else message.subject,
        *_own_lines(message.headers),
        payload if isinstance(payload, bytes) else payload.encode(),
    )
    found = hashlib.blake2b(digest_size=16)
    for part in parts:
        found.update(b"%d:" % len(part) + part)
    return found.digest()


def _own_lines(headers: bytes) -> list[bytes]:
    lines = [line for line in headers.split(b"\r\n")[1:] if line and not _is_left_out(line)]
    return [own for line in lines if not _is_left_out(own := line.removeprefix(_KEPT))]


def _is_left_out(line: bytes) -> bool:
    return line.startswith(_LEFT_OUT)
