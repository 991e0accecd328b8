"""Joins both sides of a backfill on Spark: a table of small columns for each side, one row per message, and what came of each origin.

The messages stay in the Python workers that read them; what is joined spills to disk where memory is short.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.job.comparing import IMPOSSIBLE, LATE, LEFT_OUT, NONE, REPAIRED, ROWS
from jsplan.backfill.spark.tasks import collected, raise_failure, telling
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

#: One side of an entry; yields batches of `ROWS`. It may raise JsplanError.
Side = Callable[[], Iterator[pa.RecordBatch]]
OTHERS: Final = "others"
_SAID: Final = pa.schema([("said", pa.string())])
_ROWS_IN_SPARK: Final = "leg INT, seq BIGINT, side INT, time BIGINT, digest BIGINT, place BIGINT, mark INT, said STRING"
_OK: Final = frozenset({"equal", "expired", "repaired", "skipped", OTHERS})


def compare(session: SparkSession, sides: Sequence[Side], floors: dict[int, int], listed: int, name: str) -> list[dict[str, Any]]:
    """What both sides say of each leg: `{leg, kind, count}`, and the first differences `{leg, kind, seq, place}`.

    `floors` has for each leg the sequence below which everything has expired at the target. Raises what a side raises as
    TaskFailedError.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    rows = session.range(0, len(sides), 1, len(sides)).mapInArrow(_reader(list(sides)), _ROWS_IN_SPARK)
    each = f.struct("side", "time", "digest", "place", "mark")
    messages = rows.groupBy("leg", "seq").agg(f.collect_list(each).alias("rows"), f.max("said").alias("said"))
    said = [json.loads(row.said) for row in collected(session, _judged(messages, floors).mapInArrow(_summary(listed), "said STRING"), name)]
    raise_failure(said)
    return said


def _judged(messages: DataFrame, floors: dict[int, int]) -> DataFrame:
    """`leg`, `seq`, `kind`, `place`, and `strange`: places of messages that claim this origin and another time."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - as above

    there = f.filter("rows", lambda row: row["side"] == 1)
    one = messages.withColumn("origin", f.get(f.filter("rows", lambda row: row["side"] == 0), f.lit(0))).withColumn("there", there)
    origin = f.col("origin")
    mine = f.filter("there", lambda row: (row["time"] == 0) | origin.isNull() | (row["time"] == origin["time"]))
    known = one.withColumn("mine", mine).withColumn("first", f.get(f.col("mine"), f.lit(0)))
    strange = f.filter("there", lambda row: (row["time"] != 0) & origin.isNotNull() & (row["time"] != origin["time"]))
    kind, place = _kind(floors), f.coalesce(f.array_max(f.transform("mine", lambda row: row["place"])), f.lit(0))
    strangers = f.transform(strange, lambda row: row["place"])
    return known.select("leg", "seq", kind.alias("kind"), place.alias("place"), strangers.alias("strange"), "said")


def _kind(floors: dict[int, int]) -> Column:
    from pyspark.sql import functions as f  # noqa: PLC0415

    origin, first, mine = f.col("origin"), f.col("first"), f.col("mine")
    expired = f.lit(False)
    for leg, floor in floors.items():
        expired = expired | ((f.col("leg") == leg) & (f.col("seq") < floor))
    differs = f.exists("mine", lambda row: row["digest"] != origin["digest"])
    return (
        f.when(f.col("leg") == NONE, OTHERS)
        .when(origin.isNull(), f.when(first["mark"].bitwiseAND(IMPOSSIBLE) > 0, "extra").otherwise("expired"))
        .when(f.size(mine) == 0, f.when(origin["mark"].bitwiseAND(LEFT_OUT) > 0, "skipped").when(expired, "expired").otherwise("missing"))
        .when(differs, "different")
        .when(f.size(mine) > 1, "twice")
        .when(first["mark"].bitwiseAND(LATE) > 0, "out_of_order")
        .when(first["mark"].bitwiseAND(REPAIRED) > 0, "repaired")
        .otherwise("equal")
    )


def _reader(sides: list[Side]) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                try:
                    yield from sides[number]()
                except JsplanError as error:
                    row = dict.fromkeys(ROWS.names, 0) | {"leg": NONE, "said": json.dumps(telling(error))}
                    yield pa.RecordBatch.from_pylist([row], schema=ROWS)

    return read_all


def _summary(listed: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """One partition of what was judged: how many of each kind, and the first of those that differ."""

    def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        found = Findings(listed)
        for batch in batches:
            found.take(batch)
        said = [json.dumps(one) for one in found.said()]
        yield pa.RecordBatch.from_pydict({"said": said}, schema=_SAID)

    return summed


class Findings:
    """Counts by leg and kind, and the first `listed` differences of each leg."""

    def __init__(self, listed: int) -> None:
        self._listed = listed
        self._counts: dict[tuple[int, str], int] = {}
        self._first: dict[int, list[tuple[int, str, int]]] = {}
        self._errors: list[dict[str, Any]] = []

    def take(self, batch: pa.RecordBatch) -> None:
        """Rows as `_judged` has them."""
        table = pa.Table.from_batches([batch])
        for row in table.group_by(["leg", "kind"]).aggregate([("seq", "count")]).to_pylist():
            self._count(row["leg"], row["kind"], row["seq_count"])
        plain = pc.and_(
            pc.is_in(table["kind"], value_set=pa.array(sorted(_OK - {OTHERS}))),
            pc.equal(pc.list_value_length(table["strange"]), 0),
        )
        for row in table.filter(pc.invert(plain)).to_pylist():
            self._one(row)

    def _count(self, leg: int, kind: str, count: int) -> None:
        self._counts[leg, kind] = self._counts.get((leg, kind), 0) + count

    def _one(self, row: dict[str, Any]) -> None:
        leg = row["leg"]
        if row["said"]:
            self._errors.append(json.loads(row["said"]))
        if row["kind"] == OTHERS:
            self._counts[leg, OTHERS] = row["place"]
            return
        first = self._first.setdefault(leg, [])
        if row["kind"] not in _OK:
            first.append((row["seq"], row["kind"], row["place"]))
        for place in row["strange"]:
            self._count(leg, "extra", 1)
            first.append((row["seq"], "extra", place))
        if len(first) > 4 * self._listed + 1000:
            self._first[leg] = sorted(first)[: self._listed]

    def said(self) -> Iterator[dict[str, Any]]:
        """Everything that was found."""
        yield from self._errors
        yield from ({"leg": leg, "kind": kind, "count": count} for (leg, kind), count in self._counts.items())
        for leg, first in self._first.items():
            yield from ({"leg": leg, "kind": kind, "seq": seq, "place": place} for seq, kind, place in sorted(first)[: self._listed])
