"""Joins both sides of a backfill on Spark: a table of small columns for each side, one row per message, and what came of each origin.

The messages stay in the Python workers that read them; what is joined spills to disk where memory is short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.spark.executors import collect_rows, error_to_result, raise_failure, run_tasks
from jsplan.backfill.verify.checksums import compare_checksums, sum_blocks
from jsplan.backfill.verify.message_rows import (
    IMPOSSIBLE,
    LATE,
    NO_ORIGIN,
    REPAIRED,
    ROW_SCHEMA,
    SKIPPED,
)
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: One side of an entry; yields batches of `ROW_SCHEMA`. It may raise JsplanError.
SideReader = Callable[[], Iterator[pa.RecordBatch]]
#: Brings the rows of a frame to the driver, as `tasks.collect_rows` does.
RowCollector = Callable[..., list[Any]]
OTHERS: Final = "others"
#: The side of what only says that the origin has a message.
PRESENCE_SIDE: Final = 2
_RESULT_SCHEMA: Final = pa.schema([("said", pa.string())])
ROW_DDL: Final = (
    "leg INT, seq BIGINT, side INT, time BIGINT, digest BIGINT, place BIGINT, mark INT, said STRING"
)
_EQUAL_KINDS: Final = frozenset({"equal", "expired", "repaired", "skipped", OTHERS})


def compare_sides(
    session: SparkSession,
    sides: Sequence[SideReader],
    floors: dict[int, int],
    listed: int,
    name: str,
    *,
    transformed: bool = False,
) -> list[dict[str, Any]]:
    """What both sides say of each leg: `{leg, kind, count}`, and the first differences `{leg, kind, seq, place}`.

    `floors` has for each leg the sequence below which everything has expired at the target; `shaped` is as in `compare_rows`. Raises what a
    side raises as TaskFailedError.
    """
    quickly = compare_checksums(
        said[-1] for said in run_tasks(session, [partial(sum_blocks, side) for side in sides], name)
    )
    if quickly is not None:
        return quickly
    # Something differs, or is as it should be in other ways than to be equal: every message is looked at.
    return compare_rows(
        session, read_sides(session, sides), floors, listed, name, transformed=transformed
    )


def read_sides(session: SparkSession, sides: Sequence[SideReader]) -> DataFrame:
    """What the sides yield, each read by a task of its own."""
    return session.range(0, len(sides), 1, len(sides)).mapInArrow(
        _make_side_mapper(list(sides)), ROW_DDL
    )


def compare_rows(
    session: SparkSession,
    rows: DataFrame,
    floors: dict[int, int],
    listed: int,
    name: str,
    *,
    transformed: bool = False,
    collect: RowCollector | None = None,
) -> list[dict[str, Any]]:
    """What rows of both sides say, as `compare_sides` does. `shaped`: side 0 is what the messages of the origin should have become, side 2 which
    messages it has; what a source of the target brought is not compared by what is in it, since nobody shaped that.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    here, there = f.col("side") == 0, f.col("side") == 1
    ours = there & (f.col("time") != 0) if transformed else there
    messages = rows.groupBy("leg", "seq").agg(
        f.max(f.when(f.col("side") == PRESENCE_SIDE, 1)).alias("present"),
        f.max(f.when(here, f.col("time"))).alias("time"),
        f.max(f.when(here, f.col("digest"))).alias("digest"),
        f.max(f.when(here, f.col("mark"))).alias("left_out"),
        f.count(f.when(there, 1)).alias("count"),
        f.min(f.when(there, f.col("time"))).alias("first_time"),
        f.max(f.when(there, f.col("time"))).alias("last_time"),
        f.min(f.when(ours, f.col("digest"))).alias("low"),
        f.max(f.when(ours, f.col("digest"))).alias("high"),
        f.max(f.when(there, f.col("place"))).alias("place"),
        f.max(f.when(there, f.col("mark"))).alias("mark"),
        f.max("said").alias("said"),
    )
    messages = messages.where("digest IS NOT NULL OR count > 0 OR said IS NOT NULL")
    summary = _classify_messages(messages, floors).mapInArrow(
        _make_summary_mapper(listed), "said STRING"
    )
    said = [json.loads(row.said) for row in (collect or collect_rows)(session, summary, name=name)]
    raise_failure(said)
    return said


def _classify_messages(messages: DataFrame, floors: dict[int, int]) -> DataFrame:
    """`leg`, `seq`, `kind`, `place`, and `strange`: how many messages claim this origin and another time.

    Where one claims the right time and another does not, whose hash is whose is not looked at: that they differ is told anyway.
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
        "leg",
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
    for leg, floor in floors.items():
        expired = expired | ((f.col("leg") == leg) & (f.col("seq") < floor))
    alone = f.col("strange") == 0
    differs = f.when(alone, (low != digest) | (high != digest)).otherwise(
        (low != digest) & (high != digest)
    )
    unwanted = f.col("present").isNotNull() & (
        f.col("last_time") != 0
    )  # it is at the origin, and nothing of it should be there
    left_out = f.col("left_out").bitwiseAND(SKIPPED) > 0
    return (
        f.when(f.col("leg") == NO_ORIGIN, OTHERS)
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
                        "leg": NO_ORIGIN,
                        "said": json.dumps(error_to_result(error)),
                    }
                    yield pa.RecordBatch.from_pylist([row], schema=ROW_SCHEMA)

    return read_all


def _make_summary_mapper(
    listed: int,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """One partition of what was judged: how many of each kind, and the first of those that differ."""

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = DifferenceSummary(listed)
        for batch in batches:
            found.add(batch)
        said = [json.dumps(one) for one in found.results()]
        yield pa.RecordBatch.from_pydict({"said": said}, schema=_RESULT_SCHEMA)

    return summed


class DifferenceSummary:
    """Counts by leg and kind, and the first `listed` differences of each leg."""

    def __init__(self, listed: int) -> None:
        self._listed = listed
        self._counts: dict[tuple[int, str], int] = {}
        self._first: dict[int, list[tuple[int, str, int]]] = {}
        self._errors: list[dict[str, Any]] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Rows as `_classify_messages` has them."""
        table = pa.Table.from_batches([batch])
        for row in table.group_by(["leg", "kind"]).aggregate([("seq", "count")]).to_pylist():
            self._count(row["leg"], row["kind"], row["seq_count"])
        plain = pc.and_(
            pc.is_in(table["kind"], value_set=pa.array(sorted(_EQUAL_KINDS - {OTHERS}))),
            pc.equal(table["strange"], 0),
        )
        for row in table.filter(pc.invert(plain)).to_pylist():
            self._add_row(row)

    def _count(self, leg: int, kind: str, count: int) -> None:
        self._counts[leg, kind] = self._counts.get((leg, kind), 0) + count

    def _add_row(self, row: dict[str, Any]) -> None:
        leg = row["leg"]
        if row["said"]:
            self._errors.append(json.loads(row["said"]))
        if row["kind"] == OTHERS:
            self._counts[leg, OTHERS] = row["place"]
            return
        first = self._first.setdefault(leg, [])
        if row["kind"] not in _EQUAL_KINDS:
            first.append((row["seq"], row["kind"], row["place"]))
        if row["strange"]:
            self._count(leg, "extra", row["strange"])
            first.append((row["seq"], "extra", row["place"]))
        if len(first) > 4 * self._listed + 1000:
            self._first[leg] = sorted(first)[: self._listed]

    def results(self) -> Iterator[dict[str, Any]]:
        """Everything that was found."""
        yield from self._errors
        yield from (
            {"leg": leg, "kind": kind, "count": count}
            for (leg, kind), count in self._counts.items()
        )
        for leg, first in self._first.items():
            yield from (
                {"leg": leg, "kind": kind, "seq": seq, "place": place}
                for seq, kind, place in sorted(first)[: self._listed]
            )
