"""Hash messages block by block, to prove that a copy is complete.

The copy hashes the messages as read at the origin, and again as stored. Equal lists of hashes mean
equal messages in equal order, each once: subject, headers and payload.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import contains_bytes
from jsplan.backfill.protocol.columns import (
    cut_columns,
    find_byte,
    find_tails,
    get_buffers,
    parse_numbers,
)
from jsplan.backfill.protocol.frames import BYTES, concat_rows
from jsplan.resources.source_header import ORIGIN_HEADER, SOURCE_HEADER

#: Messages per hash. A difference is then searched among these messages.
BLOCK_MESSAGES: Final = 4096
_CARRIAGE_RETURN: Final = ord("\r")
_ORIGIN_PATTERN: Final = (
    f"\r\n{ORIGIN_HEADER}: ?(?P<name>[^/\r]+/[^/\r]+)/(?P<seq>[0-9]{{1,18}})/(?P<time>[^\r]*)"
)
_TRANSPORT_HEADERS: Final = f"\r\n(?:{SOURCE_HEADER}|Nats-Expected-Last-Sequence):[^\r]*"


def strip_transport_headers(headers: pa.BinaryArray) -> pa.BinaryArray:
    """Remove the headers that servers and staging streams add."""
    if not contains_bytes(headers, b"Nats-"):
        return headers
    return pc.replace_substring_regex(headers, pattern=_TRANSPORT_HEADERS, replacement="")


def encode_canonical(
    subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
) -> pa.BinaryArray:
    """Encode each message as bytes that no other message has."""
    sizes = np.stack(
        [pc.binary_length(column).to_numpy() for column in (subject, headers, data)], axis=1
    ).astype("<i4")
    places = np.arange(len(subject) + 1, dtype=np.int32) * sizes.itemsize * 3
    lengths = pa.Array.from_buffers(
        BYTES, len(subject), [None, pa.py_buffer(places), pa.py_buffer(np.ascontiguousarray(sizes))]
    )
    return concat_rows(lengths, subject, headers, data)


class BlockHasher:
    """Hashes of messages that arrive in order, in batches of any size.

    Each column of a block is hashed for itself, and their lengths too, so no message is copied. The
    hash of the block is that of these hashes.
    """

    def __init__(self, size: int = BLOCK_MESSAGES) -> None:
        self.count = 0
        self._size = size
        self._begin_block()
        self._done: list[str] = []

    def add(self, *columns: pa.BinaryArray) -> None:
        """Add messages: subjects, header blocks without transport headers, and payloads."""
        count, start = len(columns[0]), 0
        buffers = [get_buffers(column) for column in columns]
        while start < count:
            stop = min(count, start + self._size - self.count % self._size)
            for number, (bytes_, offsets) in enumerate(buffers):
                self._columns[number].update(bytes_[offsets[start] : offsets[stop]].data)
            self._lengths.update(
                np.stack([np.diff(offsets[start : stop + 1]) for _, offsets in buffers], axis=1)
                .astype("<i4")
                .tobytes()
            )
            self.count += stop - start
            if self.count % self._size == 0:
                self._done.append(self._hash_block())
                self._begin_block()
            start = stop

    def _begin_block(self) -> None:
        self._lengths, *self._columns = (hashlib.sha256() for _ in range(4))

    def _hash_block(self) -> str:
        parts = (self._lengths, *self._columns)
        return hashlib.sha256(b"".join(part.digest() for part in parts)).hexdigest()

    def hashes(self) -> list[str]:
        """Return one hash for each block, the last one for an incomplete block."""
        return [*self._done, *([self._hash_block()] if self.count % self._size else [])]


def parse_origins(headers: pa.BinaryArray) -> tuple[pa.BinaryArray, pa.Array, pa.BinaryArray]:
    """Return the origin (`domain/stream`), sequence and time text of messages that a copy wrote.

    They are null for all others.
    """
    if not contains_bytes(headers, f"{ORIGIN_HEADER}:".encode()):
        count = len(headers)
        return pa.nulls(count, BYTES), pa.nulls(count, pa.int64()), pa.nulls(count, BYTES)
    found = pc.extract_regex(headers, pattern=_ORIGIN_PATTERN)
    name, seq, time = (pc.struct_field(found, part) for part in ("name", "seq", "time"))
    return name, _to_numbers(seq), time


def parse_source_seqs(headers: pa.BinaryArray, name: str) -> pa.Array:
    """Return the sequence in the source of messages that a server copied; null for all others.

    `name` is a stream, or `stream:hash`.
    """
    pattern = f"\r\n{SOURCE_HEADER}: ?{escape_regex(name)} (?P<seq>[0-9]{{1,18}})"
    if not contains_bytes(headers, f"{SOURCE_HEADER}: {name} ".encode()):
        return pa.nulls(len(headers), pa.int64())
    return _to_numbers(pc.struct_field(pc.extract_regex(headers, pattern=pattern), "seq"))


def extract_sourced(
    rows: pa.RecordBatch, name: str
) -> tuple[pa.RecordBatch, pa.BinaryArray, np.ndarray[Any, Any]]:
    """Return the rows that a server copied from the stream `name`.

    Returns the rows, their header blocks without transport headers, and their sequences in that
    stream. A server appends its line, so the last line decides. Rows with any other shape take the
    slower path.
    """
    line, headers = f"\r\n{SOURCE_HEADER}: {name} ".encode(), rows["headers"]
    blocks, tail = _split_tail(headers, 3)
    matches = pc.starts_with(tail, line)
    if not pc.all(matches).as_py():
        if contains_bytes(headers.filter(pc.invert(matches)), line):
            return _extract_sourced_slowly(rows, name)
        rows, blocks, tail = rows.filter(matches), blocks.filter(matches), tail.filter(matches)
    spaces, counts = find_byte(tail, ord(" "))
    if contains_bytes(blocks, b"\r\nNats-") or (np.diff(counts) < line.count(b" ") + 1).any():
        return _extract_sourced_slowly(rows, name)
    begins = get_buffers(tail)[1][:-1]
    (number,) = (
        cut_columns(tail.buffers()[2], begins + len(line), spaces[counts[:-1] + line.count(b" ")])
        if len(tail)
        else (tail,)
    )
    return rows, concat_rows(blocks, b"\r\n\r\n"), parse_numbers(number)


def _extract_sourced_slowly(
    rows: pa.RecordBatch, name: str
) -> tuple[pa.RecordBatch, pa.BinaryArray, np.ndarray[Any, Any]]:
    number = parse_source_seqs(rows["headers"], name)
    found = pc.is_valid(number)
    return (
        rows.filter(found),
        strip_transport_headers(rows["headers"].filter(found)),
        number.filter(found).to_numpy(),
    )


def split_last_line(
    headers: pa.BinaryArray, line: bytes, ends: int = 1
) -> tuple[pa.BinaryArray, pa.BinaryArray] | None:
    """Split each block before its last line, and return the blocks and the text after `line`.

    `ends` is the number of line ends from there on. Returns None where `line` is missing in a
    block, or is not its last line.
    """
    if not len(headers):
        return None
    blocks, tail = _split_tail(headers, ends)
    if not pc.all(pc.starts_with(tail, line)).as_py() or contains_bytes(blocks, line):
        return None
    return blocks, pc.binary_slice(tail, len(line), 1 << 30)


def _split_tail(headers: pa.BinaryArray, ends: int) -> tuple[pa.BinaryArray, pa.BinaryArray]:
    """Split each block before its last line.

    The tail has `ends` line ends. It is empty where the block has fewer.
    """
    places, offsets = find_tails(headers, _CARRIAGE_RETURN, ends), get_buffers(headers)[1]
    blocks, tail = cut_columns(headers.buffers()[2], offsets[:-1], places, places, offsets[1:])
    return blocks, tail


def _to_numbers(texts: pa.Array) -> pa.Array:
    return pc.cast(texts.view(pa.string()), pa.int64())


def escape_regex(text: str) -> str:
    """Escape text for the regular expressions of Arrow, which are those of RE2."""
    return "".join(c if c.isalnum() or c in "_/" else f"\\x{{{ord(c):x}}}" for c in text)
