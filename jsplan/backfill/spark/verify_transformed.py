"""Verify a copy of transformed messages.

The expected messages are what the same SQL, function and subject transform produce from the origin
now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jsplan.backfill.message_schema import to_bytes
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.rows.message_rows import ComparedOrigin, to_stored_rows
from jsplan.backfill.spark.errors import CarriedError, collect_plan_rows
from jsplan.backfill.spark.pipeline import build_expected_rows, split_by_runs
from jsplan.backfill.spark.verify_join import (
    ROW_DDL,
    FloorFinder,
    SideReader,
    compare_rows,
    read_sides,
)
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]


def compare_transformed(
    session: SparkSession,
    plan: PartitionPlan,
    origins: Sequence[ComparedOrigin],
    sides: Sequence[SideReader],
    find_floors: FloorFinder | None,
    listed: int,
    name: str,
) -> list[dict[str, Any]]:
    """Compare expected and stored messages, like `compare_sides`.

    `sides` are the target's, and the presence of messages at the origins. Raises the errors of
    `compare_sides`, and RefusedError for failing SQL or a failing function.
    """
    expected = build_expected_rows(session, plan).mapInArrow(
        _ExpectedRows(plan, tuple(origins)), ROW_DDL
    )
    rows = read_sides(session, sides).unionByName(expected)
    return compare_rows(
        session,
        rows,
        find_floors,
        listed,
        name,
        transformed=True,
        collect=partial(collect_plan_rows, plan=plan),
    )


class _ExpectedRows:
    """Mapper from expected messages to rows of the comparison."""

    def __init__(self, plan: PartitionPlan, origins: tuple[ComparedOrigin, ...]) -> None:
        self._plan = plan
        self._origins = origins

    def __call__(self, batches: Batches) -> Batches:
        transform = (
            self._plan.subject_transform.compile()
            if self._plan.subject_transform is not None and self._plan.transform is None
            else None
        )
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(
                [to_bytes(batch[name]) for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA
            )
            for number, part in split_by_runs(batch["origin_number"], rows):
                origin = self._plan.origin_tasks[number]
                try:
                    yield to_stored_rows(
                        self._origins[number],
                        rename_subjects(part, transform, origin.domain, origin.stream),
                    )
                except JsplanError as error:
                    raise CarriedError(error) from None
