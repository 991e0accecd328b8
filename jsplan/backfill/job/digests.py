"""Proves that messages arrived: a hash over each block of them, made of what was read at the origin and of what is stored in the end.

Equal lists of hashes are equal messages, in equal order, each once: subject, headers and payload.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.columns import ORIGIN, mentions
from jsplan.backfill.wire.cutting import cut, find, numbers, raw, tails
from jsplan.backfill.wire.frames import BYTES, joined

#: Messages per hash: what differs is then looked for among so many.
BLOCK: Final = 4096
SOURCE: Final = "Nats-Stream-Source"
_RETURN: Final = ord("\r")
_OF_SERVERS: Final = f"\r\n(?:{SOURCE}|Nats-Expected-Last-Sequence):[^\r]*"


def bare(headers: pa.BinaryArray) -> pa.BinaryArray:
    """Header blocks without what servers and the way through a staging stream add."""
    if not mentions(headers, b"Nats-"):
        return headers
    return pc.replace_substring_regex(headers, pattern=_OF_SERVERS, replacement="")


def canonical(subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> pa.BinaryArray:
    """Each message as bytes that no other message has."""
    sizes = np.stack([pc.binary_length(column).to_numpy() for column in (subject, headers, data)], axis=1).astype("<i4")
    places = np.arange(len(subject) + 1, dtype=np.int32) * sizes.itemsize * 3
    lengths = pa.Array.from_buffers(BYTES, len(subject), [None, pa.py_buffer(places), pa.py_buffer(np.ascontiguousarray(sizes))])
    return joined(lengths, subject, headers, data)


class Blocks:
    """The hashes of messages that come in batches of any size, in order."""

    def __init__(self, size: int = BLOCK) -> None:
        self.count = 0
        self._size = size
        self._hash = hashlib.sha256()
        self._done: list[str] = []

    def add(self, rows: pa.BinaryArray) -> None:
        """Take more messages, as `canonical` has them."""
        if not len(rows):
            return
        offsets = raw(rows)[1]
        bytes_ = memoryview(rows.buffers()[2])
        start = 0
        while start < len(rows):
            stop = min(len(rows), start + self._size - self.count % self._size)
            self._hash.update(bytes_[offsets[start] : offsets[stop]])
            self.count += stop - start
            if self.count % self._size == 0:
                self._close()
            start = stop

    def _close(self) -> None:
        self._done.append(self._hash.hexdigest())
        self._hash = hashlib.sha256()

    def hashes(self) -> list[str]:
        """One for each block, the last one for what was begun."""
        return [*self._done, *([self._hash.hexdigest()] if self.count % self._size else [])]


def origin_of(headers: pa.BinaryArray, domain: str, stream: str) -> tuple[pa.Array, pa.Array]:
    """Sequence and time text of the messages that say that they come from this stream; null for all others."""
    prefix = f"{domain}/{stream}/"
    pattern = f"\r\n{ORIGIN}: ?{escaped(prefix)}(?P<seq>[0-9]+)/(?P<time>[^\r]*)"
    if not mentions(headers, prefix.encode()):
        return pa.nulls(len(headers), pa.int64()), pa.nulls(len(headers), pa.string())
    found = pc.extract_regex(headers, pattern=pattern)
    return _number(pc.struct_field(found, "seq")), pc.struct_field(found, "time").view(pa.string())


def source_of(headers: pa.BinaryArray, name: str) -> pa.Array:
    """The sequence in the source `name` (a stream, or `stream:hash`) of messages that a server copied from there; null for all others."""
    pattern = f"\r\n{SOURCE}: ?{escaped(name)} (?P<seq>[0-9]+)"
    if not mentions(headers, f"{SOURCE}: {name} ".encode()):
        return pa.nulls(len(headers), pa.int64())
    return _number(pc.struct_field(pc.extract_regex(headers, pattern=pattern), "seq"))


def sourced(rows: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, pa.BinaryArray, np.ndarray[Any, Any]]:
    """The rows that a server copied from the stream `name`, their header blocks as `bare` has them, and their sequences there.

    A server puts its line behind all others, so what the last lines say is everything. Where anything else is found, the slow way decides.
    """
    line, headers = f"\r\n{SOURCE}: {name} ".encode(), rows["headers"]
    kept, tail = _apart(headers, 3)
    mine = pc.starts_with(tail, line)
    if not pc.all(mine).as_py():
        if mentions(headers.filter(pc.invert(mine)), line):
            return _sourced_slowly(rows, name)
        rows, kept, tail = rows.filter(mine), kept.filter(mine), tail.filter(mine)
    spaces, counts = find(tail, ord(" "))
    if mentions(kept, b"\r\nNats-") or (np.diff(counts) < line.count(b" ") + 1).any():
        return _sourced_slowly(rows, name)
    begins = raw(tail)[1][:-1]
    (number,) = cut(tail.buffers()[2], begins + len(line), spaces[counts[:-1] + line.count(b" ")]) if len(tail) else (tail,)
    return rows, joined(kept, b"\r\n\r\n"), numbers(number)


def _sourced_slowly(rows: pa.RecordBatch, name: str) -> tuple[pa.RecordBatch, pa.BinaryArray, np.ndarray[Any, Any]]:
    number = source_of(rows["headers"], name)
    found = pc.is_valid(number)
    return rows.filter(found), bare(rows["headers"].filter(found)), number.filter(found).to_numpy()


def last_line(headers: pa.BinaryArray, line: bytes, ends: int = 1) -> tuple[pa.BinaryArray, pa.BinaryArray] | None:
    """Each block without its last line, and of that what follows `line`; `ends`: how many line ends there are from there on.

    None where a block has no such line, or not as its last one.
    """
    if not len(headers):
        return None
    kept, tail = _apart(headers, ends)
    if not pc.all(pc.starts_with(tail, line)).as_py() or mentions(kept, line):
        return None
    return kept, pc.binary_slice(tail, len(line), 1 << 30)


def _apart(headers: pa.BinaryArray, ends: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Each block up to its last line, and the rest: so many line ends and what stands between them. It is empty where there are fewer."""
    at, offsets = tails(headers, _RETURN, ends), raw(headers)[1]
    kept, tail = cut(headers.buffers()[2], offsets[:-1], at, at, offsets[1:])
    return kept, tail


def _number(texts: pa.Array) -> pa.Array:
    return pc.cast(texts.view(pa.string()), pa.int64())


def escaped(text: str) -> str:
    """For the regular expressions of Arrow, which are RE2's."""
    return "".join(c if c.isalnum() or c in "_/" else f"\\x{{{ord(c):x}}}" for c in text)


__all__ = ["BLOCK", "BYTES", "Blocks", "bare", "canonical", "escaped", "last_line", "origin_of", "source_of", "sourced"]
