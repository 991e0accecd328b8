"""Hashes that do not depend on batches, and the lines that a copy and servers add."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.backfill.tasks.hashes import (
    BLOCK_MESSAGES,
    BlockHasher,
    encode_canonical,
    extract_sourced,
    parse_origins,
    parse_source_seqs,
    split_last_line,
    strip_transport_headers,
)

SOURCE = b"Nats-Stream-Source: STAGE %d > > orders.1 q8Pd3xYz\r\n"
OURS = b"Jsplan-Origin: leaf/ORDERS/%d/2026-11-22T04:55:23.988835043Z\r\n"
EXPECTED = b"Nats-Expected-Last-Sequence: 41\r\n"
OTHER = b"Nats-Stream-Source: STAGE-2 7 > > orders.1\r\n"
LINES = st.lists(st.sampled_from([b"A: 1\r\n", OURS % 7, EXPECTED, OTHER]), max_size=3).map(
    b"".join
)
BLOCKS = st.builds(
    lambda lines, last: b"NATS/1.0\r\n" + lines + last + b"\r\n",
    LINES,
    st.sampled_from([SOURCE % 1, SOURCE % 900, b""]),
)


def column(*values: bytes) -> pa.Array:
    """Return a column of bytes."""
    return pa.array(values, pa.binary())


@settings(max_examples=200, deadline=None)
@given(st.lists(BLOCKS | st.just(b""), max_size=6), st.integers(0, 2))
def test_fast_and_general_parsers_agree(blocks: list[bytes], skip: int) -> None:
    """The fast parser of sourced messages finds the same as the general one."""
    headers = column(*blocks).slice(min(skip, len(blocks)))
    general = parse_source_seqs(headers, "STAGE")
    found = pc.is_valid(general)

    rows, stripped, numbers = extract_sourced(
        pa.RecordBatch.from_arrays([headers], names=["headers"]), "STAGE"
    )

    assert rows["headers"].to_pylist() == headers.filter(found).to_pylist()
    assert stripped.to_pylist() == strip_transport_headers(headers.filter(found)).to_pylist()
    assert numbers.tolist() == general.filter(found).to_pylist()


@given(st.lists(BLOCKS, min_size=1, max_size=6))
def test_split_last_line(blocks: list[bytes]) -> None:
    """Each block equals both parts of its split, or there is no split at all."""
    line = b"\r\nNats-Stream-Source: STAGE "

    found = split_last_line(column(*blocks), line, ends=3)

    if any(line not in block or block.count(b"\r\n", block.index(line)) != 3 for block in blocks):
        assert found is None
    else:
        assert found is not None
        assert [
            stripped + line + rest
            for stripped, rest in zip(*(part.to_pylist() for part in found), strict=True)
        ] == blocks


def test_parse_origins() -> None:
    """Stream, sequence and time of its origin are parsed for each message that has one."""
    headers = column(
        b"NATS/1.0\r\n" + OURS % 12 + b"\r\n",
        b"",
        b"NATS/1.0\r\nJsplan-Origin: leaf/ORDERS2/3/x\r\n\r\n",
    )

    name, seq, time = parse_origins(headers)

    assert name.to_pylist() == [b"leaf/ORDERS", None, b"leaf/ORDERS2"]
    assert seq.to_pylist() == [12, None, 3]
    assert time.to_pylist() == [b"2026-11-22T04:55:23.988835043Z", None, b"x"]


@pytest.mark.parametrize(
    "sizes", [[10_000], [1, 4095, 1, 5903], [4096, 4096, 1808], [7] * 1428 + [4]]
)
def test_hashes_do_not_depend_on_batches(sizes: list[int]) -> None:
    """Any batches of the same messages give the same hash for each block."""
    texts = [str(number).encode() for number in range(10_000)]
    blocks, start = BlockHasher(), 0
    for size in sizes:
        part = column(*texts[start : start + size])
        blocks.add(part, part, part)
        start += size
    whole = BlockHasher()
    whole.add(column(*texts), column(*texts), column(*texts))

    assert blocks.count == whole.count == 10_000
    assert blocks.hashes() == whole.hashes()
    assert len(whole.hashes()) == -(-10_000 // BLOCK_MESSAGES)


@pytest.mark.parametrize("place", [0, 4095, 4096, 9_999])
def test_one_byte_changes_one_hash(place: int) -> None:
    """One changed byte changes the hash of its block."""
    texts = [str(number).encode() for number in range(10_000)]
    before, after = BlockHasher(), BlockHasher()
    before.add(column(*texts), column(*texts), column(*texts))
    texts[place] += b"!"
    after.add(
        column(*texts[:place], texts[place][:-1], *texts[place + 1 :]),
        column(*texts),
        column(*texts),
    )

    assert [one != other for one, other in zip(before.hashes(), after.hashes(), strict=True)].index(
        True
    ) == place // BLOCK_MESSAGES


@pytest.mark.parametrize(
    "moved",
    [
        ([b"a", b"b"], [b"", b""], [b"xy", b""]),
        ([b"a", b"b"], [b"", b""], [b"", b"xy"]),
        ([b"ab", b""], [b"", b""], [b"x", b"y"]),
        ([b"a", b"b"], [b"x", b""], [b"", b"y"]),
        ([b"b", b"a"], [b"", b""], [b"x", b"y"]),
        ([b"a", b"b"], [b"", b""], [b"y", b"x"]),
    ],
)
def test_bytes_that_move_change_the_hash(moved: tuple[list[bytes], ...]) -> None:
    """Bytes that move to another message, another field or another place change the hash."""
    before, after = BlockHasher(), BlockHasher()
    before.add(column(b"a", b"b"), column(b"", b""), column(b"x", b"y"))
    after.add(*(column(*texts) for texts in moved))

    assert before.hashes() != after.hashes()


def test_slices_have_the_hash_of_their_messages() -> None:
    """Columns that are slices of longer ones count as what they hold."""
    texts = [str(number).encode() for number in range(100)]
    long, short = column(*texts), column(*texts[30:60])
    sliced, whole = BlockHasher(), BlockHasher()
    sliced.add(long[30:60], short, long[30:60])
    whole.add(short, short, short)

    assert sliced.hashes() == whole.hashes()


def test_different_messages_have_different_encodings() -> None:
    """Messages with the same bytes in other fields have different encodings."""
    rows = encode_canonical(
        column(b"a", b"", b"a1"), column(b"", b"a", b""), column(b"1", b"1", b"")
    )

    assert len(set(rows.to_pylist())) == 3
