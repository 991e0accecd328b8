"""The lanes of a job on Spark: readers, then what users ask for (SQL, a function), then lanes, each sorted, then their writers.

What needs no rows gets none: messages whose order alone changes go through the shuffle in blocks, and lanes that read for themselves keep
them in one process. No lane writes before all readers are done, so that no lane goes on where another reader failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.columns import TABLE, origins, table
from jsplan.backfill.job.archiving_shaped import ShapedPiece
from jsplan.backfill.job.lane_writing import LaneWriter, write_dealt, write_fused
from jsplan.backfill.job.lanes import Block, Job, Packer, Piece, lane_numbers, read_piece, unpacked
from jsplan.backfill.job.mapping import renamed
from jsplan.backfill.job.returned import returned
from jsplan.backfill.spark.culprit import culprit
from jsplan.backfill.spark.saying import FunctionFailedError, SaidError, collected_for
from jsplan.backfill.spark.tasks import is_repeated, raise_failure, refused, telling
from jsplan.backfill.spark.tasks import run as run_tasks
from jsplan.backfill.spark.transforming import filtered, transformed
from jsplan.backfill.wire import MESSAGES
from jsplan.backfill.wire.frames import BYTES
from jsplan.errors import JsplanError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jsplan.backfill.job import archiving

_HEADERS: Final = "headers ARRAY<STRUCT<name: STRING, value: STRING>>"
_MESSAGES: Final = f"domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, {_HEADERS}, data BINARY, origin STRING"
_BLOCKS: Final = "lane INT, leg INT, first BIGINT, rows BINARY"
_ROWS: Final = "lane INT, leg INT, seq BIGINT, time BIGINT, subject BINARY, headers BINARY, data BINARY"
_SEEN: Final = ("_leg", "seq", "time", "subject", "_block", "data")
_SAID: Final = pa.schema([("said", pa.string())])
_PACKED: Final = pa.schema([("lane", pa.int32()), ("leg", pa.int32()), ("first", pa.int64()), ("rows", pa.binary())])
#: What a message has on its way to SQL, beside what users see.
_HIDDEN: Final = [pa.field("_leg", pa.int32()), pa.field("_block", BYTES)]
Batches = Iterator[pa.RecordBatch]
#: Of the parts that are to be read and the number of readers, what a task makes of the numbers of parts.
Reader = Callable[[list[Piece], int, Batches], Batches]


class Writer(Protocol):
    """What writes a lane, or a piece of an archive."""

    def take(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows of an origin."""

    def finish(self) -> dict[str, Any]:
        """What was written."""

    def close(self) -> None:
        """Let go of everything."""


#: Begins the writer of the lane, or piece, with a number.
Begin = Callable[[int], Writer]


def run(session: SparkSession, job: Job, name: str) -> list[dict[str, Any]]:
    """Carry out a job; what each lane that has written says. Raises RefusedError, and TaskFailedError for what another attempt may not
    meet.
    """
    if job.fused:
        said = run_tasks(session, [partial(write_fused, job, lane) for lane in range(len(job.lanes))], name)
        return [one[-1] for one in said]
    if job.dealt:
        return run_tasks(session, [partial(write_dealt, job)], name)[0]
    begin: Begin = partial(LaneWriter, job)
    write = _block_writer(begin) if job.transform is None else _row_writer(begin)
    return _carried_out(session, job, _lanes(session, job).mapInArrow(write, "said STRING"), name)


def run_pieces(session: SparkSession, job: Job, pieces: Sequence[archiving.Piece], name: str) -> list[dict[str, Any]]:
    """Write pieces of an archive, of what SQL and a function make of the messages; what each piece that got any says. Raises as `run`.

    With SQL alone each piece is read, filtered and written by one task, and is there when that is done. A function may put its rows
    anywhere, so they are sorted again.
    """
    begin: Begin = partial(ShapedPiece, job, pieces)
    rows = _lanes(session, job) if job.transform is not None else _filtered(session, job)
    return _carried_out(
        session, job, rows.mapInArrow(_row_writer(begin) if job.transform is not None else _seen_writer(job, begin), "said STRING"), name
    )


def _carried_out(session: SparkSession, job: Job, frame: DataFrame, name: str) -> list[dict[str, Any]]:
    try:
        found = [json.loads(row.said) for row in collected_for(session, frame, job, name)]
    except FunctionFailedError as error:
        where = culprit(job, partial(_fails, session, name))
        raise RefusedError(f"{error}{f', at {where}' if where else ''}. Nothing of this attempt was copied") from None
    raise_failure(found)
    return found


def _fails(session: SparkSession, name: str, job: Job) -> bool:
    """Whether the function fails on what this job reads."""
    if not any(leg.spans for leg in job.legs):
        return False
    try:
        collected_for(session, shaped(session, job).mapInArrow(_returned(job), _ROWS).groupBy().count(), job, name)
    except FunctionFailedError:
        return True
    return False


def _lanes(session: SparkSession, job: Job) -> DataFrame:
    """Everything that is to be written, each lane in a partition and in its order."""
    if job.transform is not None:
        frame = shaped(session, job).mapInArrow(_returned(job), _ROWS)
        return _partitioned(frame, job.width).sortWithinPartitions("lane", "leg", "seq")
    if job.where is not None:
        frame = _filtered(session, job).mapInArrow(_row_packer(job), _BLOCKS)
    else:
        frame = _read(session, job, _block_reader(job), _BLOCKS)
    return _partitioned(frame, job.width).sortWithinPartitions("lane", "leg", "first")


def _filtered(session: SparkSession, job: Job) -> DataFrame:
    """What SQL lets through, with header blocks as they are, in order within each part that is read."""
    where = job.where or "true"
    headers = "headers" in where.lower()
    rows = filtered(_read(session, job, _row_reader(job, hidden=True, headers=headers), _schema(headers=headers)), where)
    return rows.select(*_SEEN)


def shaped(session: SparkSession, job: Job) -> DataFrame:
    """The messages that a job reads, in the columns that users know, after its SQL and its function: `origin` is whatever was read,
    `RETURNED` has the columns where there is a function. Raises RefusedError for what cannot be done with them.
    """
    frame = _read(session, job, _row_reader(job, hidden=False, headers=True), _MESSAGES)
    frame = filtered(frame, job.where) if job.where is not None else frame
    return transformed(frame, job.transform) if job.transform is not None else frame


def messages_of(session: SparkSession, job: Job) -> DataFrame:
    """What should be stored, but for the mapping of subjects where there is no function: `leg` and the columns of `MESSAGES`, whose
    headers are those of the origin, or what a function made of them. Raises RefusedError.
    """
    if job.transform is not None:
        return shaped(session, job).mapInArrow(_returned(job), _ROWS).drop("lane")
    headers = "headers" in (job.where or "").lower()
    rows = _read(session, job, _row_reader(job, hidden=True, headers=headers), _schema(headers=headers))
    rows = filtered(rows, job.where) if job.where is not None else rows
    return rows.selectExpr("_leg AS leg", "seq", "time", "CAST(subject AS BINARY) AS subject", "_block AS headers", "data")


def _read(session: SparkSession, job: Job, reader: Reader, schema: str) -> DataFrame:
    """One row for each part that is to be read becomes its messages; several parts are one task where there are many."""
    cores = session.sparkContext.defaultParallelism
    pieces = job.pieces(2 * cores)
    return session.range(0, len(pieces), 1, max(1, min(len(pieces), 4 * cores))).mapInArrow(partial(reader, pieces, cores), schema)


def _partitioned(frame: DataFrame, lanes: int) -> DataFrame:
    """Lanes to partitions; where two of them fall into one, its writer does one after the other."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(lanes, f.col("lane"))
    return frame.repartition(lanes, "lane")


# --- readers ---------------------------------------------------------------------------------------------------------


def _block_reader(job: Job) -> Reader:
    def read_all(pieces: list[Piece], readers: int, batches: Batches) -> Batches:
        for piece in (pieces[number] for batch in batches for number in batch.column(0).to_pylist()):
            packer = Packer(job, piece.leg)
            try:
                for rows in read_piece(job, piece, readers):
                    yield from map(_row, packer.take(rows))
                yield from map(_row, packer.rest())
            except JsplanError as error:
                raise SaidError(error) from None

    return read_all


def _row(block: Block) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([value]) for value in (block.lane, block.leg, block.first, block.rows)], schema=_PACKED)


def _row_reader(job: Job, *, hidden: bool, headers: bool) -> Reader:
    def read_all(pieces: list[Piece], readers: int, batches: Batches) -> Batches:
        for piece in (pieces[number] for batch in batches for number in batch.column(0).to_pylist()):
            try:
                for rows in read_piece(job, piece, readers):
                    yield _seen(job, piece.leg, rows, hidden=hidden, headers=headers)
            except JsplanError as error:
                raise SaidError(error) from None

    return read_all


def _seen(job: Job, leg: int, rows: pa.RecordBatch, *, hidden: bool, headers: bool) -> pa.RecordBatch:
    """Messages as users see them; `origin` is what will be theirs at the target, also of what was copied before."""
    task = job.legs[leg]
    found = table(task.domain, task.stream, rows) if headers else None
    own = origins(task.domain, task.stream, rows["seq"], rows["time"]).view(pa.string())
    count = rows.num_rows
    columns: dict[str, Any] = {
        "domain": pa.repeat(pa.scalar(task.domain), count), "stream": pa.repeat(pa.scalar(task.stream), count), "seq": rows["seq"],
        "time": rows["time"], "subject": rows["subject"].view(pa.string()), "headers": found["headers"] if found is not None else None,
        "data": rows["data"], "origin": own, "_leg": pa.array([leg] * count, pa.int32()), "_block": rows["headers"],
    }  # fmt: skip
    fields = [field for field in (*TABLE, *(_HIDDEN if hidden else ())) if headers or field.name != "headers"]
    return pa.RecordBatch.from_arrays([columns[field.name] for field in fields], schema=pa.schema(fields))


def _schema(*, headers: bool) -> str:
    return (_MESSAGES if headers else _MESSAGES.replace(f" {_HEADERS},", "")) + ", _leg INT, _block BINARY"


def _row_packer(job: Job) -> Callable[[Batches], Batches]:
    """Blocks of the rows that are left; they come in order, piece by piece."""

    def pack(batches: Batches) -> Batches:
        packers: dict[int, Packer] = {}
        try:
            for batch in batches:
                for leg, part in by_leg(batch["_leg"], _messages(batch)):
                    yield from map(_row, packers.setdefault(leg, Packer(job, leg)).take(part))
            for packer in packers.values():
                yield from map(_row, packer.rest())
        except JsplanError as error:
            raise SaidError(error) from None

    return pack


def _messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `_SEEN` in the columns of `MESSAGES`."""
    return pa.RecordBatch.from_arrays([plain(batch[name]) for name in _SEEN[1:]], schema=MESSAGES)


def plain(column: pa.Array) -> pa.Array:
    """As messages have it: Spark may hand over larger offsets, and texts as text."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(BYTES)
    return column.view(BYTES) if pa.types.is_string(column.type) else column


def by_leg(legs: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows that follow each other and are of one origin."""
    ends = pc.run_end_encode(legs)
    start = 0
    for leg, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield leg, rows.slice(start, end - start)
        start = end


def _returned(job: Job) -> Callable[[Batches], Batches]:
    def check(batches: Batches) -> Batches:
        try:
            for batch in batches:
                if batch.num_rows:
                    yield returned(job, batch)
        except JsplanError as error:
            raise SaidError(error) from None

    return check


# --- writers ---------------------------------------------------------------------------------------------------------


def _block_writer(begin: Begin) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            for lane, leg, block in zip(*(batch[name] for name in ("lane", "leg", "rows")), strict=True):
                for rows in unpacked(block.as_buffer()):
                    yield lane.as_py(), leg.as_py(), rows

    return partial(_written, begin, parts)


def _seen_writer(job: Job, begin: Begin) -> Callable[[Batches], Batches]:
    mapping = job.mapping

    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        made = mapping.made() if mapping is not None else None
        for batch in batches:
            for number, found in by_leg(batch["_leg"], _messages(batch)):
                leg = job.legs[number]
                rows = renamed(found, made, leg.domain, leg.stream)
                for lane, part in by_leg(pa.array(lane_numbers(job, number, rows["seq"].to_numpy(), rows["subject"])), rows):
                    yield lane, number, part

    return partial(_written, begin, parts)


def _row_writer(begin: Begin) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            rows = pa.RecordBatch.from_arrays([plain(batch[name]) for name in MESSAGES.names], schema=MESSAGES)
            start = 0
            for lane, found in by_leg(batch["lane"], rows):
                for leg, part in by_leg(batch["leg"].slice(start, found.num_rows), found):
                    yield lane, leg, part
                start += found.num_rows

    return partial(_written, begin, parts)


def _written(begin: Begin, parts: Callable[[Batches], Iterator[tuple[int, int, pa.RecordBatch]]], batches: Batches) -> Batches:
    """Write what comes to the lanes of a partition, and say what was written."""
    writer, current = None, -1
    try:
        for lane, leg, rows in parts(batches):
            if is_repeated():
                refused()
            if lane != current:
                if writer is not None:
                    yield _told(writer.finish())
                    writer.close()
                writer, current = begin(lane), lane
            assert writer is not None
            writer.take(leg, rows)
        if writer is not None:
            yield _told(writer.finish())
    except JsplanError as error:
        yield _told(telling(error))
    finally:
        if writer is not None:
            writer.close()


def _told(said: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"said": [json.dumps(said)]}, schema=_SAID)
