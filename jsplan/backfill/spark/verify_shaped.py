"""Verifies a copy whose messages were shaped: what is expected is what the same SQL, function and mapping make of the origin now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from jsplan.backfill.job.comparing import Compared, as_stored
from jsplan.backfill.job.lanes import Job
from jsplan.backfill.job.mapping import renamed
from jsplan.backfill.spark.saying import SaidError, collected_for
from jsplan.backfill.spark.shaping import by_leg, messages_of, plain
from jsplan.backfill.spark.verify import ROWS_IN_SPARK, Side, judged, read_sides
from jsplan.backfill.wire import MESSAGES
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Batches = Iterator[pa.RecordBatch]


def compare_shaped(
    session: SparkSession, job: Job, legs: Sequence[Compared], sides: Sequence[Side], floors: dict[int, int], listed: int, name: str
) -> list[dict[str, Any]]:
    """As `verify.compare`; `sides` are the target's and which messages the origins have. Raises what it raises, and RefusedError for
    SQL or a function that fails.
    """
    expected = messages_of(session, job).mapInArrow(_Expected(job, tuple(legs)), ROWS_IN_SPARK)
    rows = read_sides(session, sides).unionByName(expected)
    return judged(session, rows, floors, listed, name, shaped=True, collect=partial(collected_for, job=job))


class _Expected:
    """Makes rows for the comparison of messages as they should be."""

    def __init__(self, job: Job, legs: tuple[Compared, ...]) -> None:
        self._job = job
        self._legs = legs

    def __call__(self, batches: Batches) -> Batches:
        mapping = self._job.mapping.made() if self._job.mapping is not None and self._job.transform is None else None
        for batch in batches:
            rows = pa.RecordBatch.from_arrays([plain(batch[name]) for name in MESSAGES.names], schema=MESSAGES)
            for number, part in by_leg(batch["leg"], rows):
                leg = self._job.legs[number]
                try:
                    yield as_stored(self._legs[number], renamed(part, mapping, leg.domain, leg.stream))
                except JsplanError as error:
                    raise SaidError(error) from None
