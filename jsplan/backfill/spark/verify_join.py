"""Compare both sides of a verification on Spark: one row of small columns per message.

The messages stay in the Python workers that read them. Blocks of equal messages are proven equal by
checksums, which takes less than half the time of a join: equal sums mean equal messages, each once.
Different sums do not say what differs. Then the rows of both sides are joined by their sequence at
the origin; that spills to disk where memory is short.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.rows import (
    AT_TARGET,
    EXPECTED,
    IMPOSSIBLE,
    LATE,
    NO_ORIGIN,
    PRESENT,
    REPAIRED,
    ROW_SCHEMA,
    SKIPPED,
    to_stored_rows,
)
from jsplan.backfill.spark.executors import collect_frame, map_numbers, run_tasks
from jsplan.backfill.spark.pipeline import build_rows, split_rows
from jsplan.backfill.tasks.partitioning import TransformSpec

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from jsplan.backfill.rows import ComparedOrigin, Comparison


#: Origin sequences per checksum.
BLOCK_SEQUENCES: Final = 1 << 16
#: Batches whose messages are added up together.
_BATCHES: Final = 64
#: Multipliers of splitmix64.
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
#: A key is the number of an origin, and in its low bits that of a block.
_BLOCK_BITS: Final = 47
_SUMS: Final = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("total", pa.uint64())])
NumberArray = np.ndarray[Any, Any]
Batches = Iterator[pa.RecordBatch]
OTHERS: Final = "others"
_EQUAL_KINDS: Final = ("equal", "expired", "repaired", "skipped", OTHERS)


def compare_sides(
    session: SparkSession, comparison: Comparison, listed: int, name: str
) -> list[dict[str, Any]]:
    """Compare both sides of each origin.

    Returns `{origin_number, kind, count}`, and of each kind of difference the first `listed` ones,
    `{origin_number, kind, seq, place}`. Raises the errors of a side as TaskFailedError, and
    RefusedError for failing SQL or a failing function.
    """
    if comparison.plan is None:
        tasks = [partial(sum_blocks, one) for one in comparison.readers]
        sums = run_tasks(session, tasks, name, repeatable=True)
        equal_counts = compare_checksums(results[-1] for results in sums)
        if equal_counts is not None:
            return equal_counts
    plan = comparison.plan
    transforms = plan.transforms if plan is not None else TransformSpec()
    collect = partial(collect_frame, session, transforms=transforms, name=name)
    is_transformed = plan is not None or comparison.is_transformed
    messages = _join_sides(_read_rows(session, comparison), is_transformed=is_transformed).persist()
    floors = dict[int, int]()
    if comparison.find_floors is not None:
        # after the target was read, because messages may expire meanwhile
        collect(messages.groupBy().count())
        floors = comparison.find_floors()
    try:
        return _collect_results(_classify_messages(messages, floors), collect, listed)
    finally:
        messages.unpersist()


def _read_rows(session: SparkSession, comparison: Comparison) -> DataFrame:
    """Read the rows of both sides, each reader in its own task."""
    readers, plan = list(comparison.readers), comparison.plan
    count = len(readers)
    rows = map_numbers(session, count, count, lambda number: readers[number](), ROW_SCHEMA)
    if plan is None:
        return rows
    expected = build_rows(session, plan, _make_expected_mapper(comparison.origins), ROW_SCHEMA)
    return rows.unionByName(expected)


def _make_expected_mapper(origins: list[ComparedOrigin]) -> Callable[[Batches], Batches]:
    """Make a mapper from the messages that a plan produces to rows of the comparison."""

    def convert(batches: Batches) -> Batches:
        for _, number, rows in (part for batch in batches for part in split_rows(batch)):
            yield to_stored_rows(origins[number], rows)

    return convert


def _join_sides(rows: DataFrame, *, is_transformed: bool) -> DataFrame:
    """Join the rows of all sides: one row for each sequence of an origin on any side.

    If `is_transformed`, the content of what a source of the target delivered is not compared.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - a slow import

    expected, stored = f.col("side") == EXPECTED, f.col("side") == AT_TARGET
    hashed = stored & (f.col("time") != 0) if is_transformed else stored
    messages = rows.groupBy("origin_number", "seq").agg(
        f.max(f.col("side") == PRESENT).alias("present"),
        f.max(f.when(expected, f.col("time"))).alias("time"),
        f.max(f.when(expected, f.col("digest"))).alias("digest"),
        f.max(f.when(expected, f.col("mark"))).alias("left_out"),
        f.count(f.when(stored, 1)).alias("count"),
        f.min(f.when(stored, f.col("time"))).alias("first_time"),
        f.max(f.when(stored, f.col("time"))).alias("last_time"),
        f.min(f.when(hashed, f.col("digest"))).alias("low"),
        f.max(f.when(hashed, f.col("digest"))).alias("high"),
        f.max(f.when(stored, f.col("place"))).alias("place"),
        f.max(f.when(stored, f.col("mark"))).alias("mark"),
    )
    return messages.where("digest IS NOT NULL OR count > 0")


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
    unwanted = f.col("present") & (f.col("last_time") != 0)
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


def _collect_results(
    classified: DataFrame, collect: Callable[[DataFrame], list[Any]], listed: int
) -> list[dict[str, Any]]:
    """Collect the counts of each origin and kind, and the first differences of each kind."""
    from pyspark.sql import Window  # noqa: PLC0415 - as above
    from pyspark.sql import functions as f  # noqa: PLC0415

    counts = classified.groupBy("origin_number", "kind").agg(
        f.count("seq").alias("messages"), f.sum("strange").alias("strange"), f.max("place")
    )
    results: list[dict[str, Any]] = []
    for number, kind, messages, strange, place in collect(counts):
        count = place if kind == OTHERS else messages
        results.append({"origin_number": number, "kind": kind, "count": count})
        if strange:
            results.append({"origin_number": number, "kind": "extra", "count": strange})
    if all(result["kind"] in _EQUAL_KINDS for result in results):
        return results
    differs = ~f.col("kind").isin(*_EQUAL_KINDS) | (f.col("strange") > 0)
    rank = f.row_number().over(Window.partitionBy("origin_number", "kind").orderBy("seq"))
    first = classified.where(differs).withColumn("rank", rank).where(f.col("rank") <= listed)
    for number, seq, kind, place, strange, _ in collect(first):
        found = {"origin_number": number, "seq": seq, "place": place}
        if kind not in _EQUAL_KINDS:
            results.append(found | {"kind": kind})
        if strange:
            results.append(found | {"kind": "extra"})
    return results


class BlockSums(Struct):
    """The number of messages of each block, and the sum of their mixed bits; other messages.

    `plain`: no message is out of order, repaired, skipped, or delivered by a source of the target.
    """

    side: int
    blocks: pa.Table
    plain: bool
    others: int


def sum_blocks(side: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[BlockSums]:
    """Sum up one side. Raises the errors of the side."""
    parts, plain, number, others = [_SUMS.empty_table()], True, EXPECTED, 0
    for rows in side():
        number = rows["side"][0].as_py()
        is_known = pc.not_equal(rows["origin_number"], NO_ORIGIN)
        known = rows.filter(is_known)
        others += pc.sum(rows["place"].filter(pc.invert(is_known)), min_count=0).as_py()
        seq, time, digest = (known[name].to_numpy() for name in ("seq", "time", "digest"))
        plain &= not rows["mark"].to_numpy().any() and bool((time > 0).all())
        mixed = _mix_bits(seq.astype(np.uint64)) ^ time.astype(np.uint64)
        mixed = _mix_bits(_mix_bits(mixed) ^ digest.view(np.uint64))
        origins = known["origin_number"].to_numpy().astype(np.int64)
        keys = (origins << _BLOCK_BITS) + seq // BLOCK_SEQUENCES
        columns = [pa.array(keys), pa.array(np.ones(len(seq), dtype=np.int64)), pa.array(mixed)]
        parts.append(pa.Table.from_arrays(columns, schema=_SUMS))
        if len(parts) > _BATCHES:
            parts = [_add_up(parts)]
    yield BlockSums(number, _add_up(parts), plain, others)


def _add_up(parts: Iterable[pa.Table]) -> pa.Table:
    """Add up the messages of each block; sums are modulo 2^64."""
    rows = pa.concat_tables(parts).group_by("key", use_threads=False)
    found = rows.aggregate([("count", "sum"), ("total", "sum")])
    return found.select(["key", "count_sum", "total_sum"]).rename_columns(_SUMS.names)


def _mix_bits(numbers: NumberArray) -> NumberArray:
    """Mix the bits of each number, so that no two changes cancel out in a sum.

    Every bit of the result depends on every bit of the number.
    """
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST_MULTIPLIER
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND_MULTIPLIER
    found: NumberArray = numbers ^ (numbers >> np.uint64(31))
    return found


def compare_checksums(sums: Iterable[BlockSums]) -> list[dict[str, Any]] | None:
    """Compare the results of `sum_blocks` of each side.

    Returns the result of a full comparison, `{origin_number, kind, count}`, or None where the sums
    do not prove that all messages are equal.
    """
    results = list(sums)
    expected, stored = (
        _add_up([_SUMS.empty_table(), *(one.blocks for one in results if one.side == side)])
        for side in (EXPECTED, AT_TARGET)
    )
    equal = expected.sort_by("key").equals(stored.sort_by("key"))
    if not equal or not all(result.plain for result in results):
        return None
    origins = pc.shift_right(expected["key"], _BLOCK_BITS)
    blocks = pa.table({"origin_number": origins, "count": expected["count"]})
    counts = blocks.group_by("origin_number", use_threads=False).aggregate([("count", "sum")])
    others = sum(result.others for result in results)
    return [
        *(
            {"origin_number": row["origin_number"], "kind": "equal", "count": row["count_sum"]}
            for row in counts.to_pylist()
        ),
        {"origin_number": NO_ORIGIN, "kind": "others", "count": others},
    ]
