"""Join both sides of a verification on Spark: one row of small columns per message.

The messages stay in the Python workers that read them. The join spills to disk where memory is
short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.rows.checksums import compare_checksums, sum_blocks
from jsplan.backfill.rows.message_rows import (
    IMPOSSIBLE,
    LATE,
    NO_ORIGIN,
    REPAIRED,
    ROW_SCHEMA,
    SKIPPED,
)
from jsplan.backfill.spark.executors import collect_rows, error_to_result, raise_failure, run_tasks
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: Reads one side of an entry in batches of `ROW_SCHEMA`. May raise JsplanError.
SideReader = Callable[[], Iterator[pa.RecordBatch]]
#: Finds the expiry floor of each origin at the target.
FloorFinder = Callable[[], dict[int, int]]
#: Collects the rows of a frame on the driver, like `collect_rows`.
RowCollector = Callable[..., list[Any]]
OTHERS: Final = "others"
#: Side of rows that only say that the origin has a message.
PRESENCE_SIDE: Final = 2
_RESULT_SCHEMA: Final = pa.schema([("said", pa.string())])
ROW_DDL: Final = (
    "origin_number INT, seq BIGINT, side INT, time BIGINT, digest BIGINT, place BIGINT, "
    "mark INT, said STRING"
)
_EQUAL_KINDS: Final = frozenset({"equal", "expired", "repaired", "skipped", OTHERS})


def compare_sides(
    session: SparkSession,
    sides: Sequence[SideReader],
    find_floors: FloorFinder | None,
    listed: int,
    name: str,
    *,
    transformed: bool = False,
) -> list[dict[str, Any]]:
    """Compare both sides of each origin.

    Returns `{origin_number, kind, count}`, and the first differences `{origin_number, kind, seq,
    place}`. `find_floors` finds for each origin the sequence below which everything has expired at
    the target; it is asked after the target was read, since messages may expire meanwhile.
    `transformed` is as in `compare_rows`. Raises the errors of a side as TaskFailedError.
    """
    equal_counts = compare_checksums(
        results[-1]
        for results in run_tasks(session, [partial(sum_blocks, side) for side in sides], name)
    )
    if equal_counts is not None:
        return equal_counts
    # the sums do not prove equality, so every message is compared
    return compare_rows(
        session, read_sides(session, sides), find_floors, listed, name, transformed=transformed
    )


def read_sides(session: SparkSession, sides: Sequence[SideReader]) -> DataFrame:
    """Read the rows of each side, each with its own task."""
    return session.range(0, len(sides), 1, len(sides)).mapInArrow(
        _make_side_mapper(list(sides)), ROW_DDL
    )


def compare_rows(
    session: SparkSession,
    rows: DataFrame,
    find_floors: FloorFinder | None,
    listed: int,
    name: str,
    *,
    transformed: bool = False,
    collect: RowCollector | None = None,
) -> list[dict[str, Any]]:
    """Compare rows of both sides, like `compare_sides`.

    `transformed`: side 0 has the expected messages, side 2 the presence of messages at the origin.
    Messages that a source of the target delivered are not transformed, so their content is not
    compared.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - a slow import

    gather, floors = collect or collect_rows, dict[int, int]()
    if find_floors is not None:
        rows = rows.persist()
        gather(session, rows.groupBy().count(), name=name)
        floors = find_floors()
    at_origin, at_target = f.col("side") == 0, f.col("side") == 1
    hashed = at_target & (f.col("time") != 0) if transformed else at_target
    messages = rows.groupBy("origin_number", "seq").agg(
        f.max(f.when(f.col("side") == PRESENCE_SIDE, 1)).alias("present"),
        f.max(f.when(at_origin, f.col("time"))).alias("time"),
        f.max(f.when(at_origin, f.col("digest"))).alias("digest"),
        f.max(f.when(at_origin, f.col("mark"))).alias("left_out"),
        f.count(f.when(at_target, 1)).alias("count"),
        f.min(f.when(at_target, f.col("time"))).alias("first_time"),
        f.max(f.when(at_target, f.col("time"))).alias("last_time"),
        f.min(f.when(hashed, f.col("digest"))).alias("low"),
        f.max(f.when(hashed, f.col("digest"))).alias("high"),
        f.max(f.when(at_target, f.col("place"))).alias("place"),
        f.max(f.when(at_target, f.col("mark"))).alias("mark"),
        f.max("said").alias("said"),
    )
    messages = messages.where("digest IS NOT NULL OR count > 0 OR said IS NOT NULL")
    summary = _classify_messages(messages, floors).mapInArrow(
        _make_summary_mapper(listed), "said STRING"
    )
    results = [json.loads(row.said) for row in gather(session, summary, name=name)]
    if find_floors is not None:
        rows.unpersist()
    raise_failure(results)
    return results


def _classify_messages(messages: DataFrame, floors: dict[int, int]) -> DataFrame:
    """Return `origin_number`, `seq`, `kind`, `place` and `strange` of each message.

    `strange` counts the messages that claim this origin with another time. If only one of several
    claims the right time, their hashes are not attributed: the difference is reported anyway.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    time, first, last, count = (
        f.col(name) for name in ("time", "first_time", "last_time", "count")
    )
    found = (count > 0) & (
        (first == 0) | (first == time) | (last == time) | ((first < time) & (last > time))
    )
    other = ((first != 0) & (first != last)) | ((first == 0) & (last != 0) & (last != time))
    strange = (
        f.when(time.isNull() | (count == 0), 0)
        .when(~found, count)
        .when(other, count - 1)
        .otherwise(0)
    )
    known = messages.withColumn("found", found).withColumn("strange", strange.cast("int"))
    return known.select(
        "origin_number",
        "seq",
        _kind_column(floors).alias("kind"),
        f.coalesce("place", f.lit(0)).alias("place"),
        "strange",
        "said",
    )


def _kind_column(floors: dict[int, int]) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415

    digest, low, high, mark = (f.col(name) for name in ("digest", "low", "high", "mark"))
    expired = f.lit(False)
    for number, floor in floors.items():
        expired = expired | ((f.col("origin_number") == number) & (f.col("seq") < floor))
    alone = f.col("strange") == 0
    differs = f.when(alone, (low != digest) | (high != digest)).otherwise(
        (low != digest) & (high != digest)
    )
    # the origin has the message, but none of its results should be in the target
    unwanted = f.col("present").isNotNull() & (f.col("last_time") != 0)
    left_out = f.col("left_out").bitwiseAND(SKIPPED) > 0
    return (
        f.when(f.col("origin_number") == NO_ORIGIN, OTHERS)
        .when(
            digest.isNull(),
            f.when((mark.bitwiseAND(IMPOSSIBLE) > 0) | unwanted, "extra").otherwise("expired"),
        )
        .when(
            ~f.col("found"),
            f.when(left_out, "skipped").when(expired, "expired").otherwise("missing"),
        )
        .when(differs, "different")
        .when(f.col("count") - f.col("strange") > 1, "twice")
        .when(mark.bitwiseAND(LATE) > 0, "out_of_order")
        .when(mark.bitwiseAND(REPAIRED) > 0, "repaired")
        .otherwise("equal")
    )


def _make_side_mapper(
    sides: list[SideReader],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield from sides[number]()
                except JsplanError as error:
                    row = dict.fromkeys(ROW_SCHEMA.names, 0) | {
                        "origin_number": NO_ORIGIN,
                        "said": json.dumps(error_to_result(error)),
                    }
                    yield pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA)

    return read_all


def _make_summary_mapper(
    listed: int,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Summarize one Spark partition: the count of each kind, and the first differences."""

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        summary = DifferenceSummary(listed)
        for batch in batches:
            summary.add(batch)
        said = [json.dumps(result) for result in summary.results()]
        yield pa.RecordBatch.from_pydict({"said": said}, schema=_RESULT_SCHEMA)

    return summed


class DifferenceSummary:
    """Counts by origin and kind, and the first `listed` differences of each origin."""

    def __init__(self, listed: int) -> None:
        self._listed = listed
        self._counts: dict[tuple[int, str], int] = {}
        self._first: dict[int, list[tuple[int, str, int]]] = {}
        self._errors: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows of `_classify_messages`."""
        table = pa.Table.from_batches([batch])
        for row in (
            table.group_by(["origin_number", "kind"]).aggregate([("seq", "count")]).to_pylist()
        ):
            self._count(row["origin_number"], row["kind"], row["seq_count"])
        plain = pc.and_(
            pc.is_in(table["kind"], value_set=pa.array(sorted(_EQUAL_KINDS - {OTHERS}))),
            pc.equal(table["strange"], 0),
        )
        for row in table.filter(pc.invert(plain)).to_pylist():
            self._add_row(row)

    def _count(self, origin_number: int, kind: str, count: int) -> None:
        self._counts[origin_number, kind] = self._counts.get((origin_number, kind), 0) + count

    def _add_row(self, row: dict[str, Any]) -> None:
        origin_number = row["origin_number"]
        if row["said"]:
            self._errors.append(json.loads(row["said"]))
        if row["kind"] == OTHERS:
            self._counts[origin_number, OTHERS] = row["place"]
            return
        first = self._first.setdefault(origin_number, [])
        if row["kind"] not in _EQUAL_KINDS:
            first.append((row["seq"], row["kind"], row["place"]))
        if row["strange"]:
            self._count(origin_number, "extra", row["strange"])
            first.append((row["seq"], "extra", row["place"]))
        if len(first) > 4 * self._listed + 1000:
            self._first[origin_number] = sorted(first)[: self._listed]

    def results(self) -> Iterator[dict[str, Any]]:
        """Yield all results."""
        yield from self._errors
        yield from (
            {"origin_number": origin_number, "kind": kind, "count": count}
            for (origin_number, kind), count in self._counts.items()
        )
        for origin_number, first in self._first.items():
            yield from (
                {"origin_number": origin_number, "kind": kind, "seq": seq, "place": place}
                for seq, kind, place in sorted(first)[: self._listed]
            )
