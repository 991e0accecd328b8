"""Proves that messages arrived: a hash over each block of them, made of what was read at the origin and of what is stored in the end.

Equal lists of hashes are equal messages, in equal order, each once: subject, headers and payload.
"""

from __future__ import annotations

import hashlib
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.columns import ORIGIN, mentions
from jsplan.backfill.wire.frames import BYTES, joined

#: Messages per hash: what differs is then looked for among so many.
BLOCK: Final = 4096
SOURCE: Final = "Nats-Stream-Source"
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
        offsets = np.frombuffer(rows.buffers()[1], dtype=np.int32)[rows.offset : rows.offset + len(rows) + 1]
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
    pattern = f"\r\n{ORIGIN}: ?{_escaped(prefix)}(?P<seq>[0-9]+)/(?P<time>[^\r]*)"
    if not mentions(headers, prefix.encode()):
        return pa.nulls(len(headers), pa.int64()), pa.nulls(len(headers), pa.string())
    found = pc.extract_regex(headers, pattern=pattern)
    return _number(pc.struct_field(found, "seq")), pc.struct_field(found, "time").view(pa.string())


def source_of(headers: pa.BinaryArray, name: str) -> pa.Array:
    """The sequence in the source `name` (a stream, or `stream:hash`) of messages that a server copied from there; null for all others."""
    pattern = f"\r\n{SOURCE}: ?{_escaped(name)} (?P<seq>[0-9]+)"
    if not mentions(headers, f"{SOURCE}: {name} ".encode()):
        return pa.nulls(len(headers), pa.int64())
    return _number(pc.struct_field(pc.extract_regex(headers, pattern=pattern), "seq"))


def sourced(headers: pa.BinaryArray, name: str) -> tuple[pa.BinaryArray, pa.Array]:
    """What `bare` and `source_of` say of messages that a server copied from the stream `name`, at the price of one search each.

    A server puts its line behind all others. Where anything else is found, the slow way decides.
    """
    line = f"\r\n{SOURCE}: {name} ".encode()
    place = pc.find_substring(headers, line)
    at = place.to_numpy()
    offsets = np.frombuffer(headers.buffers()[1], dtype=np.int32)[headers.offset : headers.offset + len(headers) + 1]
    if not len(at) or (at < 0).any():
        return bare(headers), source_of(headers, name)
    cuts = np.empty(2 * len(at) + 1, dtype=np.int32)
    cuts[:-1:2], cuts[1::2], cuts[-1] = offsets[:-1], offsets[:-1] + at, offsets[-1]
    halves = pa.Array.from_buffers(BYTES, 2 * len(at), [None, pa.py_buffer(cuts), headers.buffers()[2]])
    first = np.arange(len(at), dtype=np.int64) * 2
    kept, tail = halves.take(pa.array(first)), halves.take(pa.array(first + 1))
    if pc.any(pc.not_equal(pc.count_substring(tail, b"\r\n"), 3)).as_py() or mentions(kept, b"\r\nNats-"):
        return bare(headers), source_of(headers, name)
    words = pc.split_pattern(pc.binary_slice(tail, len(line), 1 << 30).view(pa.string()), " ", max_splits=1)
    return joined(kept, b"\r\n\r\n"), pc.cast(pc.list_element(words, 0), pa.int64())


def _number(texts: pa.Array) -> pa.Array:
    return pc.cast(texts.view(pa.string()), pa.int64())


def _escaped(text: str) -> str:
    """For the regular expressions of Arrow, which are RE2's."""
    return "".join(c if c.isalnum() or c in "_/" else f"\\x{{{ord(c):x}}}" for c in text)


__all__ = ["BLOCK", "BYTES", "Blocks", "bare", "canonical", "origin_of", "source_of", "sourced"]
