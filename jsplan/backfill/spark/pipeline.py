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

from jsplan.backfill.message_schema import TABLE_SCHEMA, format_origins, to_table
from jsplan.backfill.parquet.transformed_writer import TransformedChunkWriter
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.spark.bisect import find_failing_message
from jsplan.backfill.spark.errors import CarriedError, UserFunctionError, collect_plan_rows
from jsplan.backfill.spark.executors import (
    error_to_result,
    is_retry,
    raise_failure,
    refuse_retry,
    run_tasks,
)
from jsplan.backfill.spark.user_transforms import apply_function, filter_rows
from jsplan.backfill.tasks.partition_writer import (
    PartitionWriter,
    copy_all_partitions,
    copy_partition,
)
from jsplan.backfill.tasks.partitioning import (
    BlockPacker,
    PartitionPlan,
    ReadChunk,
    RowBlock,
    choose_partitions,
    read_chunk,
    unpack_rows,
)
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.backfill.tasks.transform_check import check_returned_rows
from jsplan.errors import JsplanError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from jsplan.backfill.parquet import writer

_HEADERS_DDL: Final = "headers ARRAY<STRUCT<name: STRING, value: STRING>>"
_MESSAGES_DDL: Final = f"domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, {_HEADERS_DDL}, data BINARY, origin STRING"
_BLOCKS_DDL: Final = "lane INT, leg INT, first BIGINT, rows BINARY"
_ROWS_DDL: Final = (
    "lane INT, leg INT, seq BIGINT, time BIGINT, subject BINARY, headers BINARY, data BINARY"
)
_ROW_COLUMNS: Final = ("_leg", "seq", "time", "subject", "_block", "data")
_RESULT_SCHEMA: Final = pa.schema([("said", pa.string())])
_BLOCK_SCHEMA: Final = pa.schema(
    [("lane", pa.int32()), ("leg", pa.int32()), ("first", pa.int64()), ("rows", pa.binary())]
)
#: What a message has on its way to SQL, beside what users see.
_HIDDEN_FIELDS: Final = [pa.field("_leg", pa.int32()), pa.field("_block", BYTES)]
Batches = Iterator[pa.RecordBatch]
#: Of the parts that are to be read and the number of readers, what a task makes of the numbers of parts.
ChunkReader = Callable[[list[ReadChunk], int, Batches], Batches]


class RowWriter(Protocol):
    """What writes a lane, or a piece of an archive."""

    def write(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows of an origin."""

    def finish(self) -> dict[str, Any]:
        """What was written."""

    def close(self) -> None:
        """Let go of everything."""


#: Begins the writer of the lane, or piece, with a number.
WriterFactory = Callable[[int], RowWriter]


def run_plan(session: SparkSession, job: PartitionPlan, name: str) -> list[dict[str, Any]]:
    """Carry out a job; what each lane that has written says. Raises RefusedError, and TaskFailedError for what another attempt may not
    meet.
    """
    if job.is_fused:
        said = run_tasks(
            session,
            [partial(copy_partition, job, lane) for lane in range(len(job.partitions))],
            name,
        )
        return [one[-1] for one in said]
    if job.has_single_reader:
        return run_tasks(session, [partial(copy_all_partitions, job)], name)[0]
    begin: WriterFactory = partial(PartitionWriter, job)
    write = _make_block_writer(begin) if job.transform is None else _make_row_writer(begin)
    return _collect_results(
        session, job, _build_partitions(session, job).mapInArrow(write, "said STRING"), name
    )


def run_export(
    session: SparkSession, job: PartitionPlan, pieces: Sequence[writer.ExportChunk], name: str
) -> list[dict[str, Any]]:
    """Write pieces of an archive, of what SQL and a function make of the messages; what each piece that got any says. Raises as `run_plan`.

    With SQL alone each piece is read, filtered and written by one task, and is there when that is done. A function may put its rows
    anywhere, so they are sorted again.
    """
    begin: WriterFactory = partial(TransformedChunkWriter, job, pieces)
    rows = (
        _build_partitions(session, job)
        if job.transform is not None
        else _build_filtered_rows(session, job)
    )
    return _collect_results(
        session,
        job,
        rows.mapInArrow(
            _make_row_writer(begin)
            if job.transform is not None
            else _make_filtered_writer(job, begin),
            "said STRING",
        ),
        name,
    )


def _collect_results(
    session: SparkSession, job: PartitionPlan, frame: DataFrame, name: str
) -> list[dict[str, Any]]:
    try:
        found = [json.loads(row.said) for row in collect_plan_rows(session, frame, job, name)]
    except UserFunctionError as error:
        where = find_failing_message(job, partial(_function_fails, session, name))
        raise RefusedError(
            f"{error}{f', at {where}' if where else ''}. Nothing of this attempt was copied"
        ) from None
    raise_failure(found)
    return found


def _function_fails(session: SparkSession, name: str, job: PartitionPlan) -> bool:
    """Whether the function fails on what this job reads."""
    if not any(leg.spans for leg in job.origin_tasks):
        return False
    try:
        collect_plan_rows(
            session,
            build_transformed_rows(session, job)
            .mapInArrow(_make_row_checker(job), _ROWS_DDL)
            .groupBy()
            .count(),
            job,
            name,
        )
    except UserFunctionError:
        return True
    return False


def _build_partitions(session: SparkSession, job: PartitionPlan) -> DataFrame:
    """Everything that is to be written, each lane in a partition and in its order."""
    if job.transform is not None:
        frame = build_transformed_rows(session, job).mapInArrow(_make_row_checker(job), _ROWS_DDL)
        return _repartition(frame, job.writer_count).sortWithinPartitions("lane", "leg", "seq")
    if job.where is not None:
        frame = _build_filtered_rows(session, job).mapInArrow(_make_row_packer(job), _BLOCKS_DDL)
    else:
        frame = _read_chunks(session, job, _make_block_reader(job), _BLOCKS_DDL)
    return _repartition(frame, job.writer_count).sortWithinPartitions("lane", "leg", "first")


def _build_filtered_rows(session: SparkSession, job: PartitionPlan) -> DataFrame:
    """What SQL lets through, with header blocks as they are, in order within each part that is read."""
    where = job.where or "true"
    headers = "headers" in where.lower()
    rows = filter_rows(
        _read_chunks(
            session,
            job,
            _make_row_reader(job, hidden=True, headers=headers),
            _row_ddl(headers=headers),
        ),
        where,
    )
    return rows.select(*_ROW_COLUMNS)


def build_transformed_rows(session: SparkSession, job: PartitionPlan) -> DataFrame:
    """The messages that a job reads, in the columns that users know, after its SQL and its function: `origin` is whatever was read,
    `RETURNED` has the columns where there is a function. Raises RefusedError for what cannot be done with them.
    """
    frame = _read_chunks(
        session, job, _make_row_reader(job, hidden=False, headers=True), _MESSAGES_DDL
    )
    frame = filter_rows(frame, job.where) if job.where is not None else frame
    return apply_function(frame, job.transform) if job.transform is not None else frame


def build_expected_rows(session: SparkSession, job: PartitionPlan) -> DataFrame:
    """What should be stored, but for the mapping of subjects where there is no function: `leg` and the columns of `MESSAGE_SCHEMA`, whose
    headers are those of the origin, or what a function made of them. Raises RefusedError.
    """
    if job.transform is not None:
        return (
            build_transformed_rows(session, job)
            .mapInArrow(_make_row_checker(job), _ROWS_DDL)
            .drop("lane")
        )
    headers = "headers" in (job.where or "").lower()
    rows = _read_chunks(
        session, job, _make_row_reader(job, hidden=True, headers=headers), _row_ddl(headers=headers)
    )
    rows = filter_rows(rows, job.where) if job.where is not None else rows
    return rows.selectExpr(
        "_leg AS leg",
        "seq",
        "time",
        "CAST(subject AS BINARY) AS subject",
        "_block AS headers",
        "data",
    )


def _read_chunks(
    session: SparkSession, job: PartitionPlan, reader: ChunkReader, schema: str
) -> DataFrame:
    """One row for each part that is to be read becomes its messages; several parts are one task where there are many."""
    cores = session.sparkContext.defaultParallelism
    pieces = job.split_into_chunks(2 * cores)
    return session.range(0, len(pieces), 1, max(1, min(len(pieces), 4 * cores))).mapInArrow(
        partial(reader, pieces, cores), schema
    )


def _repartition(frame: DataFrame, lanes: int) -> DataFrame:
    """Lanes to partitions; where two of them fall into one, its writer does one after the other."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(lanes, f.col("lane"))
    return frame.repartition(lanes, "lane")


# --- readers ---------------------------------------------------------------------------------------------------------


def _make_block_reader(job: PartitionPlan) -> ChunkReader:
    def read_all(pieces: list[ReadChunk], readers: int, batches: Batches) -> Batches:
        for piece in (
            pieces[number] for batch in batches for number in batch.column(0).to_pylist()
        ):
            packer = BlockPacker(job, piece.leg)
            try:
                for rows in read_chunk(job, piece, readers):
                    yield from map(_to_block_batch, packer.pack(rows))
                yield from map(_to_block_batch, packer.flush())
            except JsplanError as error:
                raise CarriedError(error) from None

    return read_all


def _to_block_batch(block: RowBlock) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([value])
            for value in (block.partition_number, block.origin_number, block.first_seq, block.rows)
        ],
        schema=_BLOCK_SCHEMA,
    )


def _make_row_reader(job: PartitionPlan, *, hidden: bool, headers: bool) -> ChunkReader:
    def read_all(pieces: list[ReadChunk], readers: int, batches: Batches) -> Batches:
        for piece in (
            pieces[number] for batch in batches for number in batch.column(0).to_pylist()
        ):
            try:
                for rows in read_chunk(job, piece, readers):
                    yield _to_user_columns(job, piece.leg, rows, hidden=hidden, headers=headers)
            except JsplanError as error:
                raise CarriedError(error) from None

    return read_all


def _to_user_columns(
    job: PartitionPlan, leg: int, rows: pa.RecordBatch, *, hidden: bool, headers: bool
) -> pa.RecordBatch:
    """Messages as users see them; `origin` is what will be theirs at the target, also of what was copied before."""
    task = job.origin_tasks[leg]
    found = to_table(task.domain, task.stream, rows) if headers else None
    own = format_origins(task.domain, task.stream, rows["seq"], rows["time"]).view(pa.string())
    count = rows.num_rows
    columns: dict[str, Any] = {
        "domain": pa.repeat(pa.scalar(task.domain), count),
        "stream": pa.repeat(pa.scalar(task.stream), count),
        "seq": rows["seq"],
        "time": rows["time"],
        "subject": rows["subject"].view(pa.string()),
        "headers": found["headers"] if found is not None else None,
        "data": rows["data"],
        "origin": own,
        "_leg": pa.array([leg] * count, pa.int32()),
        "_block": rows["headers"],
    }
    fields = [
        field
        for field in (*TABLE_SCHEMA, *(_HIDDEN_FIELDS if hidden else ()))
        if headers or field.name != "headers"
    ]
    return pa.RecordBatch.from_arrays(
        [columns[field.name] for field in fields], schema=pa.schema(fields)
    )


def _row_ddl(*, headers: bool) -> str:
    return (
        _MESSAGES_DDL if headers else _MESSAGES_DDL.replace(f" {_HEADERS_DDL},", "")
    ) + ", _leg INT, _block BINARY"


def _make_row_packer(job: PartitionPlan) -> Callable[[Batches], Batches]:
    """Blocks of the rows that are left; they come in order, piece by piece."""

    def pack(batches: Batches) -> Batches:
        packers: dict[int, BlockPacker] = {}
        try:
            for batch in batches:
                for leg, part in split_by_runs(batch["_leg"], _to_messages(batch)):
                    yield from map(
                        _to_block_batch, packers.setdefault(leg, BlockPacker(job, leg)).pack(part)
                    )
            for packer in packers.values():
                yield from map(_to_block_batch, packer.flush())
        except JsplanError as error:
            raise CarriedError(error) from None

    return pack


def _to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of `_ROW_COLUMNS` in the columns of `MESSAGE_SCHEMA`."""
    return pa.RecordBatch.from_arrays(
        [to_bytes(batch[name]) for name in _ROW_COLUMNS[1:]], schema=MESSAGE_SCHEMA
    )


def to_bytes(column: pa.Array) -> pa.Array:
    """As messages have it: Spark may hand over larger offsets, and texts as text."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(BYTES)
    return column.view(BYTES) if pa.types.is_string(column.type) else column


def split_by_runs(numbers: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Rows that follow each other and are of one origin."""
    ends = pc.run_end_encode(numbers)
    start = 0
    for leg, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield leg, rows.slice(start, end - start)
        start = end


def _make_row_checker(job: PartitionPlan) -> Callable[[Batches], Batches]:
    def check(batches: Batches) -> Batches:
        try:
            for batch in batches:
                if batch.num_rows:
                    yield check_returned_rows(job, batch)
        except JsplanError as error:
            raise CarriedError(error) from None

    return check


# --- writers ---------------------------------------------------------------------------------------------------------


def _make_block_writer(begin: WriterFactory) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            for lane, leg, block in zip(
                *(batch[name] for name in ("lane", "leg", "rows")), strict=True
            ):
                for rows in unpack_rows(block.as_buffer()):
                    yield lane.as_py(), leg.as_py(), rows

    return partial(_write_parts, begin, parts)


def _make_filtered_writer(job: PartitionPlan, begin: WriterFactory) -> Callable[[Batches], Batches]:
    mapping = job.subject_transform

    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        made = mapping.compile() if mapping is not None else None
        for batch in batches:
            for number, found in split_by_runs(batch["_leg"], _to_messages(batch)):
                leg = job.origin_tasks[number]
                rows = rename_subjects(found, made, leg.domain, leg.stream)
                for lane, part in split_by_runs(
                    pa.array(
                        choose_partitions(job, number, rows["seq"].to_numpy(), rows["subject"])
                    ),
                    rows,
                ):
                    yield lane, number, part

    return partial(_write_parts, begin, parts)


def _make_row_writer(begin: WriterFactory) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(
                [to_bytes(batch[name]) for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA
            )
            start = 0
            for lane, found in split_by_runs(batch["lane"], rows):
                for leg, part in split_by_runs(batch["leg"].slice(start, found.num_rows), found):
                    yield lane, leg, part
                start += found.num_rows

    return partial(_write_parts, begin, parts)


def _write_parts(
    begin: WriterFactory,
    parts: Callable[[Batches], Iterator[tuple[int, int, pa.RecordBatch]]],
    batches: Batches,
) -> Batches:
    """Write what comes to the lanes of a partition, and say what was written."""
    writer, current = None, -1
    try:
        for lane, leg, rows in parts(batches):
            if is_retry():
                refuse_retry()
            if lane != current:
                if writer is not None:
                    yield _to_result_batch(writer.finish())
                    writer.close()
                writer, current = begin(lane), lane
            assert writer is not None
            writer.write(leg, rows)
        if writer is not None:
            yield _to_result_batch(writer.finish())
    except JsplanError as error:
        yield _to_result_batch(error_to_result(error))
    finally:
        if writer is not None:
            writer.close()


def _to_result_batch(said: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"said": [json.dumps(said)]}, schema=_RESULT_SCHEMA)
