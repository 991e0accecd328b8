"""Rows of the target's side in `verify`, with the fast and the general extraction."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from jsplan.address import BACKFILL_PREFIX
from jsplan.backfill.protocol.frames import MESSAGE_SCHEMA
from jsplan.backfill.rows import ComparedOrigin, OrderTracker, extract_copied_rows

ORIGIN = ComparedOrigin(0, "leaf", "ORDERS", 1, 1000, 0, 1000, {"leaf/ORDERS": 1 << 62})
TIME = "2026-11-22T04:55:23.988835043Z"
OWN = st.builds(
    "Jsplan-Origin: leaf/ORDERS/{}/{}\r\n".format,
    st.integers(1, 2000),
    st.sampled_from([TIME, "yesterday"]),
)
OTHERS = st.sampled_from(
    [
        "",
        "A: 1\r\n",
        "Nats-Msg-Id: 7\r\n",
        "Jsplan-Origin: leaf/OTHER/3/x\r\n",
        "A: leaf/ORDERS/3/x\r\n",
    ]
)
SOURCES = st.builds(
    "Nats-Stream-Source: {} {} > > orders.1\r\n".format,
    st.sampled_from([f"{BACKFILL_PREFIX}a", f"{BACKFILL_PREFIX}b", "B"]),
    st.just(5),
)
HEADERS = st.builds(
    "NATS/1.0\r\n{}{}{}{}\r\n".format, OTHERS, OWN, OTHERS, SOURCES | st.just("")
) | st.just("")
PLAIN = st.builds("NATS/1.0\r\n{}{}{}\r\n".format, st.sampled_from(["", "A: 1\r\n"]), OWN, SOURCES)


@example(
    [
        (
            f"NATS/1.0\r\nJsplan-Origin: leaf/OTHER/3/x\r\nJsplan-Origin: leaf/ORDERS/1/{TIME}"
            f"\r\nNats-Stream-Source: {BACKFILL_PREFIX}a 5 > > orders.1\r\n\r\n"
        )
    ]
)
@given(st.lists(PLAIN, max_size=6) | st.lists(HEADERS, max_size=6))
def test_fast_and_general_extraction_agree(blocks: list[str]) -> None:
    """The fast extraction of copied rows gives the same as the general one."""
    count = len(blocks)
    columns = [
        range(1, count + 1),
        range(count),
        [b"orders.1"] * count,
        [block.encode() for block in blocks],
        [b"x"] * count,
    ]
    rows = pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, MESSAGE_SCHEMA, strict=True)],
        schema=MESSAGE_SCHEMA,
    )

    fast, general = (extract_rows(rows, is_fast=is_fast) for is_fast in (True, False))

    assert fast == general


def extract_rows(rows: pa.RecordBatch, *, is_fast: bool) -> list[dict[str, object]]:
    """Extract the rows of a target.

    Without the fast extraction each row is extracted beside an unusual one.
    """
    if is_fast:
        found = extract_copied_rows(ORIGIN, rows, OrderTracker(), b"leaf/ORDERS")
        return found.to_pylist() if found is not None else []
    unusual = pa.RecordBatch.from_pylist(
        [
            {
                "seq": 0,
                "time": 0,
                "subject": b"orders.1",
                "headers": b"NATS/1.0\r\nJsplan-Origin: leaf/ORDERS/1/x\r\n\r\n",
                "data": b"",
            }
        ],
        schema=MESSAGE_SCHEMA,
    )
    found = extract_copied_rows(
        ORIGIN,
        pa.Table.from_batches([rows, unusual]).combine_chunks().to_batches()[0],
        OrderTracker(),
        b"leaf/ORDERS",
    )
    return [row for row in found.to_pylist() if row["place"]] if found is not None else []
