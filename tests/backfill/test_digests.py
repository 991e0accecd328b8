"""What proves a copy: hashes that do not depend on batches, and lines that servers add found the quick way as the slow way finds them."""

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
    parse_origin_header,
    parse_source_header,
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
    """A column of bytes."""
    return pa.array(values, pa.binary())


@settings(max_examples=200, deadline=None)
@given(st.lists(BLOCKS | st.just(b""), max_size=6), st.integers(0, 2))
def test_the_quick_way_finds_what_the_slow_way_finds(blocks: list[bytes], skip: int) -> None:
    """Header blocks of sourced messages, alone and among others, whole columns and parts of them."""
    headers = column(*blocks).slice(min(skip, len(blocks)))
    slow = parse_source_header(headers, "STAGE")
    found = pc.is_valid(slow)

    rows, kept, numbers = extract_sourced(
        pa.RecordBatch.from_arrays([headers], names=["headers"]), "STAGE"
    )

    assert rows["headers"].to_pylist() == headers.filter(found).to_pylist()
    assert kept.to_pylist() == strip_transport_headers(headers.filter(found)).to_pylist()
    assert numbers.tolist() == slow.filter(found).to_pylist()


@given(st.lists(BLOCKS, min_size=1, max_size=6))
def test_a_last_line_is_only_taken_where_it_is_the_last(blocks: list[bytes]) -> None:
    """Each block is put together again from both parts, or there is no answer at all."""
    line = b"\r\nNats-Stream-Source: STAGE "

    found = split_last_line(column(*blocks), line, ends=3)

    if any(line not in block or block.count(b"\r\n", block.index(line)) != 3 for block in blocks):
        assert found is None
    else:
        assert found is not None
        assert [
            kept + line + rest
            for kept, rest in zip(*(part.to_pylist() for part in found), strict=True)
        ] == blocks


def test_where_a_message_comes_from() -> None:
    """Sequence and time of messages of one stream of one domain, and of no stream whose name is longer."""
    headers = column(
        b"NATS/1.0\r\n" + OURS % 12 + b"\r\n",
        b"",
        b"NATS/1.0\r\nJsplan-Origin: leaf/ORDERS2/3/x\r\n\r\n",
    )

    seq, time = parse_origin_header(headers, "leaf", "ORDERS")

    assert seq.to_pylist() == [12, None, None]
    assert time.to_pylist() == ["2026-11-22T04:55:23.988835043Z", None, None]


@pytest.mark.parametrize(
    "sizes", [[10_000], [1, 4095, 1, 5903], [4096, 4096, 1808], [7] * 1428 + [4]]
)
def test_hashes_do_not_depend_on_batches(sizes: list[int]) -> None:
    """However messages come together, the hashes are the same: one for each block."""
    texts = [str(number).encode() for number in range(10_000)]
    blocks, start = BlockHasher(), 0
    for size in sizes:
        part = column(*texts[start : start + size])
        blocks.add(encode_canonical(part, part, part))
        start += size
    whole = BlockHasher()
    whole.add(encode_canonical(column(*texts), column(*texts), column(*texts)))

    assert blocks.count == whole.count == 10_000
    assert blocks.hashes() == whole.hashes()
    assert len(whole.hashes()) == -(-10_000 // BLOCK_MESSAGES)


@pytest.mark.parametrize("place", [0, 4095, 4096, 9_999])
def test_one_byte_changes_one_hash(place: int) -> None:
    """What was altered is in the block that differs."""
    texts = [str(number).encode() for number in range(10_000)]
    before, after = BlockHasher(), BlockHasher()
    before.add(encode_canonical(column(*texts), column(*texts), column(*texts)))
    texts[place] += b"!"
    after.add(
        encode_canonical(
            column(*texts[:place], texts[place][:-1], *texts[place + 1 :]),
            column(*texts),
            column(*texts),
        )
    )

    assert [one != other for one, other in zip(before.hashes(), after.hashes(), strict=True)].index(
        True
    ) == place // BLOCK_MESSAGES


def test_no_two_messages_are_the_same_bytes() -> None:
    """What stands in the subject of one and in the payload of another is told apart."""
    rows = encode_canonical(
        column(b"a", b"", b"a1"), column(b"", b"a", b""), column(b"1", b"1", b"")
    )

    assert len(set(rows.to_pylist())) == 3
