"""Cuts the values of a column at places that numpy finds: all of them at once, no object for a value. Pure functions.

Arrow's own splitting makes a list of every word of every value, most of which nobody asks for; a search for one byte over all values and a
cut at its places costs a third of that.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BYTES: Final = pa.binary()

Positions = np.ndarray[Any, Any]


def get_buffers(column: pa.BinaryArray) -> tuple[Positions, Positions]:
    """The bytes of a column, and where in them each value begins, with the end of the last. Nothing is copied."""
    offsets = np.frombuffer(column.buffers()[1], dtype=np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    if column.buffers()[2] is None:
        return np.empty(0, dtype=np.uint8), offsets
    return np.frombuffer(column.buffers()[2], dtype=np.uint8), offsets


def find_byte(column: pa.BinaryArray, byte: int) -> tuple[Positions, Positions]:
    """Where a byte is in the bytes of a column, as `get_buffers` has them; and for each value how many are before it, with how many there are."""
    view, offsets = get_buffers(column)
    begin = int(offsets[0]) if len(offsets) else 0
    places = np.flatnonzero(view[begin : int(offsets[-1])] == byte) + begin
    return places, np.searchsorted(places, offsets)


def cut_columns(buffer: Any, *ends: Positions) -> list[pa.BinaryArray]:
    """Of each row the bytes between its first two `ends`, the next two, and so on. Places must not go back, within a row and between rows.

    What comes out are copies: `buffer` may be used again.
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
    """Decimal digits as numbers. Raises pyarrow.ArrowInvalid (a ValueError) for anything else."""
    found: Positions = pc.cast(texts.view(pa.string()), pa.int64()).to_numpy()
    return found


def find_tails(column: pa.BinaryArray, byte: int, count: int) -> Positions:
    """Where in the bytes of a column the last but `count - 1` of a byte is in each value; the value's end where it has fewer."""
    places, counts = find_byte(column, byte)
    _, offsets = get_buffers(column)
    if not len(places):
        return offsets[1:]
    return np.where(
        np.diff(counts) >= count, places[np.maximum(counts[1:] - count, 0)], offsets[1:]
    )
