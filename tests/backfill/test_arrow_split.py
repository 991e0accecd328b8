"""Whole columns are cut where Python's own search would cut each value, also columns that are parts of others."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsplan.backfill.protocol.arrow_split import (
    cut_columns,
    find_byte,
    find_tails,
    get_buffers,
    parse_numbers,
)

VALUES = st.lists(st.text(alphabet="ab. \r", max_size=8).map(str.encode), max_size=8)


def part(values: list[bytes], skip: int) -> tuple[pa.Array, list[bytes]]:
    """A column that begins inside another, and what it has."""
    return pa.array(values, pa.binary()).slice(min(skip, len(values))), values[skip:]


@given(VALUES, st.integers(0, 2))
def test_every_place_of_a_byte(values: list[bytes], skip: int) -> None:
    """Each value holds the byte at just these places."""
    column, expected = part(values, skip)

    places, counts = find_byte(column, ord("."))

    begins = get_buffers(column)[1]
    found = [
        (places[counts[row] : counts[row + 1]] - begins[row]).tolist() for row in range(len(column))
    ]
    assert found == [
        [at for at, byte in enumerate(value) if byte == ord(".")] for value in expected
    ]


@given(VALUES, st.integers(0, 2), st.integers(1, 3))
def test_what_follows_the_last_few(values: list[bytes], skip: int, count: int) -> None:
    """Both halves of each value, cut at the last but so many of a byte; where there are fewer the second one is empty."""
    column, expected = part(values, skip)
    at, offsets = find_tails(column, ord("\r"), count), get_buffers(column)[1]

    kept, tail = cut_columns(column.buffers()[2], offsets[:-1], at, at, offsets[1:])

    whole = [value.rsplit(b"\r", count) for value in expected]
    assert kept.to_pylist() == [
        words[0] if len(words) > count else value
        for words, value in zip(whole, expected, strict=True)
    ]
    assert [
        one + other for one, other in zip(kept.to_pylist(), tail.to_pylist(), strict=True)
    ] == expected


def test_what_was_cut_is_free_of_its_buffer() -> None:
    """A receive buffer is used again at once."""
    column = pa.array([b"one 1", b"two 2"], pa.binary())
    buffer = bytearray(column.buffers()[2].to_pybytes())
    spaces, _ = find_byte(column, ord(" "))
    offsets = get_buffers(column)[1]

    words, digits = cut_columns(buffer, offsets[:-1], spaces, spaces + 1, offsets[1:])
    buffer[:] = bytes(len(buffer))

    assert words.to_pylist() == [b"one", b"two"]
    assert parse_numbers(digits).tolist() == [1, 2]


@pytest.mark.parametrize("text", [b"", b"x", b"1.5", b"99999999999999999999"])
def test_what_is_no_number(text: bytes) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match="parse"):
        parse_numbers(pa.array([text], pa.binary()))
