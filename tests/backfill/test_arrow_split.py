"""Columns are cut at the same places as their values, also slices of other columns."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsplan.backfill.protocol.columns import (
    cut_columns,
    find_byte,
    find_tails,
    get_buffers,
    parse_numbers,
)

VALUES = st.lists(st.text(alphabet="ab. \r", max_size=8).map(str.encode), max_size=8)


def slice_column(values: list[bytes], skip: int) -> tuple[pa.Array, list[bytes]]:
    """Return a column that begins inside another, and its values."""
    return pa.array(values, pa.binary()).slice(min(skip, len(values))), values[skip:]


@given(VALUES, st.integers(0, 2))
def test_find_byte_finds_every_place(values: list[bytes], skip: int) -> None:
    """Each place of a byte is found in each value."""
    column, expected = slice_column(values, skip)

    places, counts = find_byte(column, ord("."))

    begins = get_buffers(column)[1]
    found = [
        (places[counts[row] : counts[row + 1]] - begins[row]).tolist() for row in range(len(column))
    ]
    assert found == [
        [at for at, byte in enumerate(value) if byte == ord(".")] for value in expected
    ]


@given(VALUES, st.integers(0, 2), st.integers(1, 3))
def test_values_are_cut_at_the_last_separators(values: list[bytes], skip: int, count: int) -> None:
    """Each value is cut at its last separators; with fewer of them the tails is empty."""
    column, expected = slice_column(values, skip)
    at, offsets = find_tails(column, ord("\r"), count), get_buffers(column)[1]

    heads, tails = cut_columns(column.buffers()[2], offsets[:-1], at, at, offsets[1:])

    whole = [value.rsplit(b"\r", count) for value in expected]
    assert heads.to_pylist() == [
        words[0] if len(words) > count else value
        for words, value in zip(whole, expected, strict=True)
    ]
    assert [
        one + other for one, other in zip(heads.to_pylist(), tails.to_pylist(), strict=True)
    ] == expected


def test_cut_columns_outlive_the_buffer() -> None:
    """Cut columns do not change when their receive buffer is used again."""
    column = pa.array([b"one 1", b"two 2"], pa.binary())
    buffer = bytearray(column.buffers()[2].to_pybytes())
    spaces, _ = find_byte(column, ord(" "))
    offsets = get_buffers(column)[1]

    words, digits = cut_columns(buffer, offsets[:-1], spaces, spaces + 1, offsets[1:])
    buffer[:] = bytes(len(buffer))

    assert words.to_pylist() == [b"one", b"two"]
    assert parse_numbers(digits).tolist() == [1, 2]


@pytest.mark.parametrize("text", [b"", b"x", b"1.5", b"99999999999999999999"])
def test_invalid_numbers_are_refused(text: bytes) -> None:
    """A value that is not a number is refused."""
    with pytest.raises(ValueError, match="parse"):
        parse_numbers(pa.array([text], pa.binary()))
