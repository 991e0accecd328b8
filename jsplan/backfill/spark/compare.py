"""Comparison of two streams on Spark, for more messages than one machine reads in time.

By sequence each task compares one range of both streams. By header both are read in ranges, and
joined by the sequence at the origin, which spills to disk where memory is short.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jsplan.backfill.compare_rows import StreamAt, StreamPair, compare_rows, to_contents
from jsplan.backfill.spark.executors import collect, map_numbers, run_tasks
from jsplan.comparing.by_header import last_to_match, message_digest, origin_seq
from jsplan.comparing.relation import Relation
from jsplan.facts.compare_streams import MAX_RANGES, Comparison, Content, Sequences
from jsplan.planning.backfill.model import SeqRange
from jsplan.subjects import passes_filters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The most sequences that one task reads. What differs in them must fit into the memory of a task.
TASK_SEQUENCES: Final = 1_000_000
_JOB: Final = "jsplan compare"
#: A message by its sequence at the origin. `place` is that in the copy, 0 for one of the origin;
#: `due`: the copy should have it.
_ROWS: Final = pa.schema(
    [("seq", pa.int64()), ("place", pa.int64()), ("digest", pa.binary()), ("due", pa.bool_())]
)


def compare_streams(session: SparkSession, pair: StreamPair) -> Comparison:
    """Compare two streams. Raises RefusedError and TaskFailedError."""
    if pair.relation.by == "header":
        return _compare_by_header(session, pair)
    tasks = [partial(_compare_part, *pair.sides, part) for part in _split(session, pair.spans[0])]
    found = Comparison()
    for (result,) in run_tasks(session, tasks, _JOB, repeatable=True):
        found.add_all(result)
    return found


def _compare_part(origin: StreamAt, copy: StreamAt, span: SeqRange) -> Iterator[Comparison]:
    yield compare_rows(origin, copy, span)


def _split(session: SparkSession, span: SeqRange) -> list[SeqRange]:
    """Split a range for all tasks that run at the same time."""
    slots = session.sparkContext.defaultParallelism
    return span.split(min(TASK_SEQUENCES, max(1, -(-span.size // slots))))


def _compare_by_header(session: SparkSession, pair: StreamPair) -> Comparison:
    parts = [
        (is_copy, part) for is_copy, span in enumerate(pair.spans) for part in _split(session, span)
    ]
    relation, sides = pair.relation, pair.sides
    wanted = SeqRange(pair.spans[0].first, pair.last)

    def read(number: int) -> Iterator[pa.RecordBatch]:
        is_copy, part = parts[number]
        endpoint, stream = sides[is_copy]
        to_row = _copied_row if is_copy else _origin_row
        for batch in endpoint.read(stream, *part):
            found = (to_row(relation, message, wanted) for message in to_contents(batch))
            rows = [dict(zip(_ROWS.names, row, strict=True)) for row in found if row is not None]
            yield pa.RecordBatch.from_pylist(rows, schema=_ROWS)

    rows = map_numbers(session, len(parts), len(parts), read, _ROWS)
    return _collect(session, rows, wanted)


def _origin_row(relation: Relation, message: Content, wanted: SeqRange) -> tuple[Any, ...]:
    passes = passes_filters(message.subject.decode(), relation.filters)
    due = message.seq <= wanted.last and passes
    return message.seq, 0, message_digest(message, relation), due


def _copied_row(relation: Relation, message: Content, wanted: SeqRange) -> tuple[Any, ...] | None:
    seq = origin_seq(message, relation)
    if seq is None or not wanted.first <= seq <= last_to_match(relation, wanted.last):
        return None
    return seq, message.seq, message_digest(message, relation), False


def _collect(session: SparkSession, rows: DataFrame, wanted: SeqRange) -> Comparison:
    """Collect the number of compared messages, and the ranges of each difference."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - a slow import

    is_copied = f.col("place") > 0
    messages = rows.groupBy("seq").agg(
        f.max(f.when(~is_copied, f.col("digest"))).alias("expected"),
        f.max("due").alias("due"),
        f.min(f.when(is_copied, f.struct("place", "digest"))).alias("first"),
        f.count(f.when(is_copied, 1)).alias("count"),
    )
    messages = messages.persist()
    try:
        compared = messages.where(
            f.col("expected").isNotNull() & (f.col("count") > 0) & (f.col("seq") <= wanted.last)
        )
        found = Comparison(messages=collect(session, compared.groupBy().count(), _JOB)[0][0])
        totals = dict[str, int]()
        for kind, first, last, place, total in collect(session, _find_ranges(messages), _JOB):
            totals[kind] = total
            if kind == "extra":
                found.add_extra(first, last, place)
            else:
                getattr(found, kind).add_range(first, last)
    finally:
        messages.unpersist()
    for kind, total in totals.items():
        sequences: Sequences = getattr(found, kind)
        sequences.omitted += total - sequences.count
        sequences.count = total
    return found


def _find_ranges(messages: DataFrame) -> DataFrame:
    """Return kind, first and last sequence, place and total of the first ranges of each kind.

    Sequences in a row have one distance to their rank. So have the places of an extra message.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - a slow import
    from pyspark.sql import functions as f  # noqa: PLC0415

    kind = (
        f.when(f.col("expected").isNull(), "extra")
        .when(f.col("count") == 0, f.when(f.col("due"), "missing"))
        .when(f.col("first.digest") != f.col("expected"), "different")
    )
    kinds = f.array(kind, f.when(f.col("count") > 1, "twice"))
    differing = messages.select("seq", "first.place", f.explode(kinds).alias("kind"))
    by_kind = Window.partitionBy("kind")
    rank = f.row_number().over(by_kind.orderBy("seq"))
    place_rank = f.when(f.col("kind") == "extra", f.col("place") - rank)
    ranges = (
        differing.where("kind IS NOT NULL")
        .select("kind", "seq", "place", (f.col("seq") - rank).alias("run"), place_rank.alias("at"))
        .groupBy("kind", "run", "at")
        .agg(f.min("seq").alias("first"), f.max("seq").alias("last"), f.min("place").alias("place"))
    )
    number = f.row_number().over(by_kind.orderBy("first"))
    total = f.sum(f.col("last") - f.col("first") + 1).over(by_kind)
    numbered = ranges.select("kind", "first", "last", "place", total, number.alias("number"))
    first_ones = numbered.where(f.col("number") <= MAX_RANGES).orderBy("kind", "first")
    return first_ones.drop("number")
