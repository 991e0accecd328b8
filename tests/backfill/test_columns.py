from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.backfill.message_schema import (
    HEADERS_TYPE,
    TABLE_SCHEMA,
    add_origin_header,
    encode_headers,
    format_origins,
    neutralize_control_headers,
    parse_headers,
    resolve_origins,
    to_table,
)
from jsplan.backfill.protocol.frames import BYTES, MESSAGE_SCHEMA

NAME = st.binary(min_size=1, max_size=8).map(
    lambda b: b.replace(b"\r", b"").replace(b"\n", b"").replace(b":", b"") or b"A"
)
VALUE = st.binary(max_size=10).map(lambda b: b.replace(b"\r", b"").replace(b"\n", b""))
FIELDS = st.lists(st.tuples(NAME, VALUE), max_size=4)


def block(fields: list[tuple[bytes, bytes]]) -> bytes:
    """Return a header block as nats.go writes it."""
    return (
        b"NATS/1.0\r\n"
        + b"".join(name + b": " + value + b"\r\n" for name, value in fields)
        + b"\r\n"
        if fields
        else b""
    )


def column(*values: bytes) -> pa.BinaryArray:
    """Return a column of bytes."""
    return pa.array(list(values), BYTES)


@settings(max_examples=200, deadline=None)
@given(st.lists(FIELDS, min_size=1, max_size=6))
def test_parsed_headers_encode_to_the_same_bytes(rows: list[list[tuple[bytes, bytes]]]) -> None:
    """Order, duplicates and bytes of headers survive parsing and encoding, also without UTF-8."""
    blocks = column(*map(block, rows))

    found = parse_headers(blocks)

    assert found.type == HEADERS_TYPE
    assert encode_headers(found).to_pylist() == blocks.to_pylist()
    fields = found.flatten()
    names = fields.field("name").view(BYTES).to_pylist()
    assert names == [name for fields in rows for name, _ in fields]


def test_unusual_header_lines_are_parsed() -> None:
    """Header lines with unusual spaces, colons and values are parsed."""
    found = parse_headers(
        column(b"NATS/1.0\r\na:3\r\nB: x:y: z \r\nC: \r\nD\r\n\r\n", b"NATS/1.0\r\n\r\n", b"")
    )

    pairs = [[(field["name"], field["value"]) for field in row] for row in found.to_pylist()]
    assert pairs == [[("a", "3"), ("B", "x:y: z "), ("C", ""), ("D", "")], [], []]


def test_a_slice_is_parsed_as_itself() -> None:
    """A slice of a longer column is parsed as its own rows only."""
    blocks = column(b"NATS/1.0\r\nA: 1\r\n\r\n", b"NATS/1.0\r\nB: 2\r\n\r\n", b"")

    assert [[f["name"] for f in row] for row in parse_headers(blocks.slice(1)).to_pylist()] == [
        ["B"],
        [],
    ]
    assert encode_headers(parse_headers(blocks).slice(1)).to_pylist() == [
        b"NATS/1.0\r\nB: 2\r\n\r\n",
        b"",
    ]


CONTROLS = [
    "Nats-Msg-Id", "nats-rollup", "NATS-TTL", "Nats-Expected-Last-Sequence", "Nats-Expected-Stream", "Nats-Batch-Id", "Nats-Schedule",
    "Nats-Schedule-Target", "Nats-Scheduler", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-Incr",
]  # fmt: skip


@pytest.mark.parametrize("name", CONTROLS)
def test_control_headers_are_renamed(name: str) -> None:
    """A control header is kept under another name, and other lines are unchanged."""
    blocks = column(
        b"NATS/1.0\r\n%s: 1\r\nX-Nats-Msg-Id: 2\r\n\r\n" % name.encode(),
        b"",
        b"NATS/1.0\r\nA: Nats-Msg-Id: 3\r\n\r\n",
    )

    assert neutralize_control_headers(blocks).to_pylist() == [
        b"NATS/1.0\r\nJsplan-Kept-%s: 1\r\nX-Nats-Msg-Id: 2\r\n\r\n" % name.encode(),
        b"",
        b"NATS/1.0\r\nA: Nats-Msg-Id: 3\r\n\r\n",
    ]


def test_other_headers_are_unchanged() -> None:
    """Headers without an effect on the server are unchanged."""
    blocks = column(
        b"NATS/1.0\r\nJsplan-Origin: a/b/1/x\r\nNats-Stream: S\r\nTraceparent: 1\r\n\r\n"
    )

    assert neutralize_control_headers(blocks).to_pylist() == blocks.to_pylist()


def test_an_earlier_origin_is_kept_beside_the_new_one() -> None:
    """The last line names the stream that is read; the earlier origin is kept beside it."""
    blocks = column(
        b"NATS/1.0\r\nA: 1\r\nJsplan-Origin: a/b/1/x\r\n\r\n", b"", b"NATS/1.0\r\nB: 2\r\n\r\n"
    )

    assert add_origin_header(blocks, column(b"c/d/7/t", b"c/d/8/t", b"c/d/9/t")).to_pylist() == [
        b"NATS/1.0\r\nA: 1\r\nJsplan-Kept-Origin: a/b/1/x\r\nJsplan-Origin: c/d/7/t\r\n\r\n",
        b"NATS/1.0\r\nJsplan-Origin: c/d/8/t\r\n\r\n",
        b"NATS/1.0\r\nB: 2\r\nJsplan-Origin: c/d/9/t\r\n\r\n",
    ]


TIMES = [0, 1, 999_999_999, 1_000_000_000, 1_795_309_291_290_062_261, 253_402_300_799_999_999_999]


def test_format_origins() -> None:
    """An identity has domain, stream, sequence and the time to the nanosecond."""
    found = format_origins(
        "leaf",
        "ORDERS",
        pa.array(range(1, 7)),
        pa.array([t for t in TIMES if t < 2**63] + [2**63 - 1]),
    )

    assert [text.decode() for text in found.to_pylist()] == [
        "leaf/ORDERS/1/1970-01-01T00:00:00.000000000Z",
        "leaf/ORDERS/2/1970-01-01T00:00:00.000000001Z",
        "leaf/ORDERS/3/1970-01-01T00:00:00.999999999Z",
        "leaf/ORDERS/4/1970-01-01T00:00:01.000000000Z",
        "leaf/ORDERS/5/2026-11-22T01:01:31.290062261Z",
        "leaf/ORDERS/6/2262-04-11T23:47:16.854775807Z",
    ]


def test_the_origin_header_is_preferred() -> None:
    """The origin of a message is its `Jsplan-Origin`; without one it is its own origin."""
    blocks = column(
        b"NATS/1.0\r\nA: 1\r\nJsplan-Origin: leaf/S/7/t\r\n\r\n",
        b"",
        b"NATS/1.0\r\nX: Jsplan-Origin: no\r\n\r\n",
    )
    own = column(b"a", b"b", b"c")

    assert resolve_origins(blocks, own).to_pylist() == [b"leaf/S/7/t", b"b", b"c"]
    assert resolve_origins(column(b""), column(b"a")).to_pylist() == [b"a"]


def test_the_table_of_a_stream() -> None:
    """A table has every documented column with its type."""
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array([3]),
            pa.array([5]),
            column(b"s.a"),
            column(b"NATS/1.0\r\nA: 1\r\n\r\n"),
            column(b"\xff"),
        ],
        schema=MESSAGE_SCHEMA,
    )

    found = to_table("hub", "S", rows)

    assert found.schema == TABLE_SCHEMA
    assert found.to_pylist() == [
        {
            "domain": "hub",
            "stream": "S",
            "seq": 3,
            "time": 5,
            "subject": "s.a",
            "headers": [{"name": "A", "value": "1"}],
            "data": b"\xff",
            "origin": "hub/S/3/1970-01-01T00:00:00.000000005Z",
        }
    ]
