"""What verify makes of the target's side, the quick way and the slow one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jsplan.address import BACKFILL_PREFIX
from jsplan.backfill.protocol.frames import MESSAGE_SCHEMA
from jsplan.backfill.verify import message_rows
from jsplan.backfill.verify.message_rows import ComparedOrigin

LEG = ComparedOrigin(0, "leaf", "ORDERS", 1, 1000, (), 0, 1000)
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


@given(st.lists(PLAIN, max_size=6) | st.lists(HEADERS, max_size=6))
def test_the_quick_way_says_what_the_slow_way_says(blocks: list[str]) -> None:
    """Origins, times, hashes and marks of messages that came by staging streams, alone and among others."""
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

    quick, slow = (compare_rows(rows, quickly=quickly) for quickly in (True, False))

    assert quick == slow


def compare_rows(rows: pa.RecordBatch, *, quickly: bool) -> list[dict[str, object]]:
    """What is made of the rows of a target; without the quick way each row is looked at with one that is not plain."""
    if quickly:
        found = message_rows.extract_copied_rows(LEG, rows, message_rows.OrderTracker())
        return found.to_pylist() if found is not None else []
    foreign = pa.RecordBatch.from_pylist(
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
    found = message_rows.extract_copied_rows(
        LEG,
        pa.Table.from_batches([rows, foreign]).combine_chunks().to_batches()[0],
        message_rows.OrderTracker(),
    )
    return [row for row in found.to_pylist() if row["place"]] if found is not None else []
