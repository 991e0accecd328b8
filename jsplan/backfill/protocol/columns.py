"""Columns of Arrow as protocol: split at positions found by numpy, and checked before that.

No object is created per value. Arrow's own split creates a list of every token of every value.
Searching one byte in all values and cutting at its positions costs a third of that. All functions
are pure.

Of the rows that are sent, a blank would end a subject, and a line break would run a command.
Servers store any other byte, and also wildcards as tokens. Those are refused, because a staging
stream cannot give such a message its subject again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.errors import RefusedError

_BYTES: Final = pa.binary()

Positions = np.ndarray[Any, Any]
_INVALID_SUBJECT: Final = r"[ \t\r\n]|^$|^\.|\.$|\.\.|(?:^|\.)[*>](?:\.|$)"
_INVALID_HEADER_NAME: Final = r"^$|[\r\n:]"
_DOT: Final = ord(".")
#: Each invalid subject has one of these, or begins or ends with a dot.
_SUSPECT: Final = (b" ", b"\t", b"\r", b"\n", b"*", b">", b"..")


def get_buffers(column: pa.BinaryArray) -> tuple[Positions, Positions]:
    """Return the bytes of a column and the offsets of its values, without a copy."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    if column.buffers()[2] is None:
        return np.empty(0, dtype=np.uint8), offsets
    return np.frombuffer(column.buffers()[2], dtype=np.uint8), offsets


def find_byte(column: pa.BinaryArray, byte: int) -> tuple[Positions, Positions]:
    """Return the positions of a byte in a column, and the count before each value.

    Positions refer to the bytes of `get_buffers`. The counts end with the total.
    """
    view, offsets = get_buffers(column)
    begin = int(offsets[0]) if len(offsets) else 0
    places = np.flatnonzero(view[begin : int(offsets[-1])] == byte) + begin
    return places, np.searchsorted(places, offsets)


def cut_columns(buffer: Any, *ends: Positions) -> list[pa.BinaryArray]:
    """Return columns with the bytes of each row between pairs of `ends`.

    The first column is between the first two `ends`, the next one between the next two. Positions
    must ascend within a row and between rows. The columns are copies, so `buffer` may be reused.
    """
    count, width = len(ends[0]), len(ends)
    offsets = np.empty(count * width + 1, dtype=np.int32)
    for number, places in enumerate(ends):
        offsets[number:-1:width] = places
    offsets[-1] = ends[-1][-1] if count else 0
    view = pa.Array.from_buffers(
        _BYTES, count * width, [None, pa.py_buffer(offsets), pa.py_buffer(buffer)]
    )
    first = np.arange(count, dtype=np.int64) * width
    return [view.take(pa.array(first + number)) for number in range(0, width, 2)]


def parse_numbers(texts: pa.BinaryArray) -> Positions:
    """Parse decimal digits. Raises pyarrow.ArrowInvalid (a ValueError) for anything else."""
    found: Positions = pc.cast(texts.view(pa.string()), pa.int64()).to_numpy()
    return found


def find_tails(column: pa.BinaryArray, byte: int, count: int) -> Positions:
    """Return the position of the `count`th last occurrence of a byte in each value.

    Returns the end of a value that has fewer.
    """
    places, counts = find_byte(column, byte)
    _, offsets = get_buffers(column)
    if not len(places):
        return offsets[1:]
    return np.where(
        np.diff(counts) >= count, places[np.maximum(counts[1:] - count, 0)], offsets[1:]
    )


def group_rows(column: pa.Array) -> list[tuple[Any, Positions]]:
    """Return each value of a column with the places of its rows, in order."""
    encoded = pc.dictionary_encode(column)
    codes = encoded.indices.to_numpy()
    places = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[places], np.arange(len(encoded.dictionary) + 1))
    return [
        (value, places[cuts[code] : cuts[code + 1]])
        for code, value in enumerate(encoded.dictionary.to_pylist())
    ]


def find_invalid_row(
    subject: pa.BinaryArray,
    headers: pa.ListArray | None = None,
    data: pa.BinaryArray | None = None,
) -> tuple[int, str] | None:
    """Find a row that cannot be published: its number, and what is wrong with it.

    Columns are binary, `headers` are lists of names and values.
    """
    for problem, good in _check_columns(subject, headers, data):
        if not pc.all(good).as_py():
            row = int(np.argmin(good.to_numpy(zero_copy_only=False)))
            return row, problem.format(
                subject=(subject[row].as_py() or b"").decode(errors="replace")
            )
    return None


def require_valid_subjects(subject: pa.BinaryArray) -> None:
    """Raise RefusedError for a subject that would become another one, or a command."""
    if (found := find_invalid_row(subject)) is not None:
        raise RefusedError(
            f"a message cannot be published: it has {found[1]}",
            hint="A subject has no blank, line break, wildcard or empty token.",
        )


def find_unended_headers(block: pa.BinaryArray) -> int | None:
    """Find a header block without an empty line at its end, to which no line can be added.

    Servers store any bytes as headers.
    """
    good = pc.or_(pc.ends_with(block, b"\r\n\r\n"), pc.equal(pc.binary_length(block), 0))
    return None if pc.all(good).as_py() else good.to_pylist().index(False)


def _check_columns(
    subject: pa.BinaryArray, headers: pa.ListArray | None, data: pa.BinaryArray | None
) -> Iterator[tuple[str, pa.BooleanArray]]:
    """Yield what may be wrong with a row, and which rows are good."""
    if subject.null_count:
        yield "no subject", subject.is_valid()
    if not _is_plain(subject):
        invalid = pc.match_substring_regex(subject, _INVALID_SUBJECT)
        yield "an invalid subject: {subject!r}", pc.invert(invalid)
    if data is not None:
        yield "no data; an empty payload is X''", data.is_valid()
    if headers is not None:
        yield "an invalid header", _check_headers(headers)


def _is_plain(subject: pa.BinaryArray) -> bool:
    """Check all subjects at once; False if one may be invalid."""
    view, offsets = get_buffers(subject)
    text = view[int(offsets[0]) : int(offsets[-1])].tobytes()
    if any(part in text for part in _SUSPECT) or not np.diff(offsets).all():
        return False
    ends = np.concatenate([offsets[:-1], offsets[1:] - 1])
    return not (view[ends] == _DOT).any()


def _check_headers(headers: pa.ListArray) -> pa.BooleanArray:
    """Return which rows have headers that are read back as they are."""
    fields = headers.flatten()
    name, value = (pc.struct_field(fields, part).cast(pa.binary()) for part in ("name", "value"))
    invalid = pc.or_(
        pc.fill_null(pc.match_substring_regex(name, _INVALID_HEADER_NAME), True),
        pc.match_substring_regex(pc.fill_null(value, b""), r"[\r\n]"),
    ).to_numpy(zero_copy_only=False)
    good = np.ones(len(headers), dtype=bool)
    good[pc.list_parent_indices(headers).to_numpy()[invalid]] = False
    return pa.array(good)
