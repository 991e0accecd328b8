"""Verifies a copy whose messages were shaped: what is expected is what the same SQL, function and mapping make of the origin now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.spark.errors import CarriedError, collect_plan_rows
from jsplan.backfill.spark.pipeline import build_expected_rows, split_by_runs, to_bytes
from jsplan.backfill.spark.verify_join import ROW_DDL, SideReader, compare_rows, read_sides
from jsplan.backfill.tasks.partitioning import PartitionPlan
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.backfill.verify.message_rows import ComparedOrigin, to_stored_rows
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]


def compare_transformed(
    session: SparkSession,
    job: PartitionPlan,
    legs: Sequence[ComparedOrigin],
    sides: Sequence[SideReader],
    floors: dict[int, int],
    listed: int,
    name: str,
) -> list[dict[str, Any]]:
    """As `verify.compare`; `sides` are the target's and which messages the origins have. Raises what it raises, and RefusedError for
    SQL or a function that fails.
    """
    expected = build_expected_rows(session, job).mapInArrow(
        _ExpectedRows(job, tuple(legs)), ROW_DDL
    )
    rows = read_sides(session, sides).unionByName(expected)
    return compare_rows(
        session,
        rows,
        floors,
        listed,
        name,
        transformed=True,
        collect=partial(collect_plan_rows, job=job),
    )


class _ExpectedRows:
    """Makes rows for the comparison of messages as they should be."""

    def __init__(self, job: PartitionPlan, legs: tuple[ComparedOrigin, ...]) -> None:
        self._plan = job
        self._origins = legs

    def __call__(self, batches: Batches) -> Batches:
        mapping = (
            self._plan.subject_transform.compile()
            if self._plan.subject_transform is not None and self._plan.transform is None
            else None
        )
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(
                [to_bytes(batch[name]) for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA
            )
            for number, part in split_by_runs(batch["leg"], rows):
                leg = self._plan.origin_tasks[number]
                try:
                    yield to_stored_rows(
                        self._origins[number],
                        rename_subjects(part, mapping, leg.domain, leg.stream),
                    )
                except JsplanError as error:
                    raise CarriedError(error) from None
