from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from jsplan.backfill.message_schema import HEADERS_TYPE
from jsplan.backfill.spark.user_transforms import check_returned_rows
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.origin_task import ExistingMessages, OriginTask
from jsplan.backfill.tasks.partitioning import (
    Partition,
    PartitionPlan,
    TransformFunction,
    TransformSpec,
)
from jsplan.backfill.tasks.subject_transform import SubjectTransform
from jsplan.backfill.tasks.target_scan import build_existing
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import SeqRange

TIME = "2026-01-01T00:00:00.000000007Z"
NANOS = 1_767_225_600_000_000_007
ENDPOINT = Endpoint("c", "$JS.API")
ROW: dict[str, Any] = {
    "origin": f"leaf/S/7/{TIME}",
    "subject": "s.a",
    "headers": [{"name": "A", "value": "b"}],
    "data": b"x",
}
TYPES = pa.schema(
    [
        ("origin", pa.string()),
        ("subject", pa.string()),
        ("headers", HEADERS_TYPE),
        ("data", pa.binary()),
    ]
)


def partition_plan(present: ExistingMessages | None = None, **settings: Any) -> PartitionPlan:
    """Return a plan of two origins and three partitions by subject.

    Sequences 1 to 10 and 20 to 30 of the first origin are pending.
    """
    origins = (
        OriginTask(
            ENDPOINT,
            "leaf",
            "S",
            (SeqRange(1, 10), SeqRange(20, 30)),
            (),
            present or ExistingMessages(),
        ),
        OriginTask(ENDPOINT, "leaf", "S2", (SeqRange(1, 5),), ()),
    )
    partitions = tuple(Partition(ENDPOINT, f"STAGE{number}", "") for number in range(3))
    return PartitionPlan(
        partitions,
        origins,
        TransformSpec("subject", transform=TransformFunction("clean.py", "run", ""), **settings),
    )


def returned_batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    """Return the rows of a function: `ROW` with these changes, once for each."""
    return pa.RecordBatch.from_pylist([ROW | row for row in rows], schema=TYPES)


def test_rows_become_messages() -> None:
    """A row becomes a message with origin number, sequence, time, headers and partition."""
    mapping = SubjectTransform("s.*", "new.$1")
    found = check_returned_rows(
        partition_plan(subject_transform=mapping),
        returned_batch({}, {"origin": f"leaf/S2/3/{TIME}", "subject": "t", "headers": []}),
    )

    rows = found.to_pylist()
    assert [(row["origin_number"], row["seq"], row["time"], row["subject"]) for row in rows] == [
        (0, 7, NANOS, b"new.a"),
        (1, 3, NANOS, b"t"),
    ]
    assert [row["headers"] for row in rows] == [b"NATS/1.0\r\nA: b\r\n\r\n", b""]
    again = check_returned_rows(
        partition_plan(subject_transform=mapping), returned_batch({"origin": f"leaf/S/8/{TIME}"})
    )
    assert again["partition_number"][0].as_py() == rows[0]["partition_number"]


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"origin": None}, r"returned a row \(no origin\) with an origin that was not read"),
    ({"origin": f"leaf/OTHER/7/{TIME}"}, r"\(leaf/OTHER/7/.*\) with an origin that was not"),
    ({"origin": f"leaf/S/11/{TIME}"}, "with an origin that was not"),
    ({"origin": f"leaf/S2/6/{TIME}"}, "with an origin that was not"),
    ({"origin": "leaf/S/7/yesterday"}, "with an origin that was not"),
    ({"origin": "leaf/S/7"}, "with an origin that was not"),
    ({"subject": None}, r"\(leaf/S/7/.*\) with no subject"),
    ({"subject": ""}, "an invalid subject: ''"),
    ({"subject": "a b"}, "an invalid subject: 'a b'"),
    ({"subject": "a..b"}, "an invalid subject"),
    ({"subject": "a.*"}, "an invalid subject"),
    ({"subject": "a.>"}, "an invalid subject"),
    ({"data": None}, "with no data"),
    (
        {"headers": [{"name": "A", "value": "b\r\nNats-Rollup: all"}]},
        "an invalid header",
    ),
    ({"headers": [{"name": "A:b", "value": "c"}]}, "an invalid header"),
    ({"headers": [{"name": None, "value": "c"}]}, "an invalid header"),
]


@pytest.mark.parametrize(("fault", "message"), FAULTS, ids=[str(fault) for fault, _ in FAULTS])
def test_an_invalid_row_is_refused(fault: dict[str, Any], message: str) -> None:
    """An invalid row is named by its origin, with the fault and the function."""
    with pytest.raises(RefusedError, match=f"transform clean.py:run .*{message}"):
        check_returned_rows(partition_plan(), returned_batch({}, fault))


def test_an_origin_that_was_not_read_is_refused() -> None:
    """A function cannot return a message that it was not given."""
    there = build_existing(np.array([7, 9]), np.array([NANOS, NANOS]))

    with pytest.raises(RefusedError, match="an origin that was not read"):
        check_returned_rows(partition_plan(there), returned_batch({}))
    assert (
        check_returned_rows(
            partition_plan(there), returned_batch({"origin": f"leaf/S/8/{TIME}"})
        ).num_rows
        == 1
    )


def test_what_servers_store_is_valid() -> None:
    """A subject or header that a server has stored is valid, such as one with control bytes."""
    row = {"subject": "a*b.c>.\x01", "headers": [{"name": "A \x02", "value": "\x03"}]}

    assert check_returned_rows(partition_plan(), returned_batch(row)).num_rows == 1
