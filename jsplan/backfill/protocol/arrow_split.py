"""Split the values of a binary column at positions found by numpy.

No object is created per value. Arrow's own split creates a list of every token of every value.
Searching one byte in all values and cutting at its positions costs a third of that. All functions
are pure.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_BYTES: Final = pa.binary()

Positions = np.ndarray[Any, Any]


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
