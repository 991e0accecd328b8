"""Run a partitioned copy on Spark: readers, SQL and function of the user, then writers.

Each partition is sorted. Copies without SQL or function shuffle whole blocks of messages, and
partitions that read for themselves stay in one process. No partition is written before all readers
have finished, so no partition continues where another reader failed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import TABLE_SCHEMA, format_origins, to_bytes, to_table
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
from jsplan.backfill.tasks.archive_writer import ChunkWriter
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

    from jsplan.backfill.tasks.archive_writer import ExportChunk

_HEADERS_DDL: Final = "headers ARRAY<STRUCT<name: STRING, value: STRING>>"
_MESSAGES_DDL: Final = (
    "domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, "
    f"{_HEADERS_DDL}, data BINARY, origin STRING"
)
_NUMBERS_DDL: Final = "partition_number INT, origin_number INT"
_BLOCKS_DDL: Final = f"{_NUMBERS_DDL}, first BIGINT, rows BINARY"
_ROWS_DDL: Final = (
    f"{_NUMBERS_DDL}, seq BIGINT, time BIGINT, subject BINARY, headers BINARY, data BINARY"
)
_ROW_COLUMNS: Final = ("_origin_number", "seq", "time", "subject", "_block", "data")
_RESULT_SCHEMA: Final = pa.schema([("said", pa.string())])
_BLOCK_SCHEMA: Final = pa.schema(
    [
        ("partition_number", pa.int32()),
        ("origin_number", pa.int32()),
        ("first", pa.int64()),
        ("rows", pa.binary()),
    ]
)
#: Columns of a message for SQL, besides those of users.
_HIDDEN_FIELDS: Final = [pa.field("_origin_number", pa.int32()), pa.field("_block", BYTES)]
Batches = Iterator[pa.RecordBatch]
#: Reads the chunks with these numbers, given all chunks and the number of readers.
ChunkReader = Callable[[list[ReadChunk], int, Batches], Batches]


class RowWriter(Protocol):
    """Writer of a partition, or of a chunk of an archive."""

    def write(self, origin_number: int, rows: pa.RecordBatch) -> int:
        """Write rows of an origin."""

    def finish(self) -> dict[str, Any]:
        """Return what was written."""

    def close(self) -> None:
        """Close the writer."""


#: Creates the writer of the partition, or chunk, with a number.
WriterFactory = Callable[[int], RowWriter]


def run_plan(session: SparkSession, plan: PartitionPlan, name: str) -> list[dict[str, Any]]:
    """Run a plan, and return the result of each partition with messages.

    Raises RefusedError, and TaskFailedError for an error that another attempt may avoid.
    """
    if plan.is_fused:
        results = run_tasks(
            session,
            [partial(copy_partition, plan, number) for number in range(len(plan.partitions))],
            name,
        )
        return [result[-1] for result in results]
    if plan.has_single_reader:
        return run_tasks(session, [partial(copy_all_partitions, plan)], name)[0]
    begin: WriterFactory = partial(PartitionWriter, plan)
    write = _make_block_writer(begin) if plan.transform is None else _make_row_writer(begin)
    return _collect_results(
        session, plan, _build_partitions(session, plan).mapInArrow(write, "said STRING"), name
    )


def run_export(
    session: SparkSession, plan: PartitionPlan, chunks: Sequence[ExportChunk], name: str
) -> list[dict[str, Any]]:
    """Write chunks of an archive from the results of SQL and function.

    Returns the results of the chunks with messages. With SQL alone, one task reads, filters and
    writes each chunk, which is finished with the task. A function may return rows in any order, so
    they are sorted again. Raises the errors of `run_plan`.
    """

    def begin(number: int) -> RowWriter:
        return ChunkWriter(chunks[number])

    rows = (
        _build_partitions(session, plan)
        if plan.transform is not None
        else _build_filtered_rows(session, plan)
    )
    return _collect_results(
        session,
        plan,
        rows.mapInArrow(
            _make_row_writer(begin)
            if plan.transform is not None
            else _make_filtered_writer(plan, begin),
            "said STRING",
        ),
        name,
    )


def _collect_results(
    session: SparkSession, plan: PartitionPlan, frame: DataFrame, name: str
) -> list[dict[str, Any]]:
    try:
        results = [json.loads(row.said) for row in collect_plan_rows(session, frame, plan, name)]
    except UserFunctionError as error:
        origin = find_failing_message(plan, partial(_function_fails, session, name))
        raise RefusedError(
            f"{error}{f', at {origin}' if origin else ''}. Nothing of this attempt was copied"
        ) from None
    raise_failure(results)
    return results


def _function_fails(session: SparkSession, name: str, plan: PartitionPlan) -> bool:
    """Return True if the function fails on what this plan reads."""
    if not any(origin.spans for origin in plan.origin_tasks):
        return False
    try:
        collect_plan_rows(
            session,
            build_transformed_rows(session, plan)
            .mapInArrow(_make_row_checker(plan), _ROWS_DDL)
            .groupBy()
            .count(),
            plan,
            name,
        )
    except UserFunctionError:
        return True
    return False


def _build_partitions(session: SparkSession, plan: PartitionPlan) -> DataFrame:
    """Build the rows to write, each partition in order in its own Spark partition."""
    if plan.transform is not None:
        frame = build_transformed_rows(session, plan).mapInArrow(_make_row_checker(plan), _ROWS_DDL)
        return _repartition(frame, plan.writer_count).sortWithinPartitions(
            "partition_number", "origin_number", "seq"
        )
    if plan.where is not None:
        frame = _build_filtered_rows(session, plan).mapInArrow(_make_row_packer(plan), _BLOCKS_DDL)
    else:
        frame = _read_chunks(session, plan, _make_block_reader(plan), _BLOCKS_DDL)
    return _repartition(frame, plan.writer_count).sortWithinPartitions(
        "partition_number", "origin_number", "first"
    )


def _build_filtered_rows(session: SparkSession, plan: PartitionPlan) -> DataFrame:
    """Build the rows that match the SQL, with raw header blocks, in order within each chunk."""
    where = plan.where or "true"
    headers = "headers" in where.lower()
    rows = filter_rows(
        _read_chunks(
            session,
            plan,
            _make_row_reader(plan, hidden=True, headers=headers),
            _row_ddl(headers=headers),
        ),
        where,
    )
    return rows.select(*_ROW_COLUMNS)


def build_transformed_rows(session: SparkSession, plan: PartitionPlan) -> DataFrame:
    """Build the messages of a plan in the columns of users, after its SQL and its function.

    With a function, the columns are `REQUIRED_COLUMNS`. Its rows are not checked. Raises
    RefusedError for invalid SQL or an invalid function.
    """
    frame = _read_chunks(
        session, plan, _make_row_reader(plan, hidden=False, headers=True), _MESSAGES_DDL
    )
    frame = filter_rows(frame, plan.where) if plan.where is not None else frame
    return apply_function(frame, plan.transform) if plan.transform is not None else frame


def build_expected_rows(session: SparkSession, plan: PartitionPlan) -> DataFrame:
    """Build the messages that should be stored: `origin_number` and `MESSAGE_SCHEMA`.

    Without a function, the subject transform is not applied yet. Headers are those of the origin,
    or what the function returned. Raises RefusedError.
    """
    if plan.transform is not None:
        return (
            build_transformed_rows(session, plan)
            .mapInArrow(_make_row_checker(plan), _ROWS_DDL)
            .drop("partition_number")
        )
    headers = "headers" in (plan.where or "").lower()
    rows = _read_chunks(
        session,
        plan,
        _make_row_reader(plan, hidden=True, headers=headers),
        _row_ddl(headers=headers),
    )
    rows = filter_rows(rows, plan.where) if plan.where is not None else rows
    return rows.selectExpr(
        "_origin_number AS origin_number",
        "seq",
        "time",
        "CAST(subject AS BINARY) AS subject",
        "_block AS headers",
        "data",
    )


def _read_chunks(
    session: SparkSession, plan: PartitionPlan, reader: ChunkReader, schema: str
) -> DataFrame:
    """Read each chunk as messages. Many chunks share a task."""
    cores = session.sparkContext.defaultParallelism
    chunks = plan.split_into_chunks(2 * cores)
    return session.range(0, len(chunks), 1, max(1, min(len(chunks), 4 * cores))).mapInArrow(
        partial(reader, chunks, cores), schema
    )


def _repartition(frame: DataFrame, count: int) -> DataFrame:
    """Assign partitions to Spark partitions. Partitions in the same one are written in turn."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, f.col("partition_number"))
    return frame.repartition(count, "partition_number")


# --- readers ---


def _make_block_reader(plan: PartitionPlan) -> ChunkReader:
    def read_all(chunks: list[ReadChunk], readers: int, batches: Batches) -> Batches:
        for chunk in (
            chunks[number] for batch in batches for number in batch.column(0).to_pylist()
        ):
            packer = BlockPacker(plan, chunk.origin_number)
            try:
                for rows in read_chunk(plan, chunk, readers):
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


def _make_row_reader(plan: PartitionPlan, *, hidden: bool, headers: bool) -> ChunkReader:
    def read_all(chunks: list[ReadChunk], readers: int, batches: Batches) -> Batches:
        for chunk in (
            chunks[number] for batch in batches for number in batch.column(0).to_pylist()
        ):
            try:
                for rows in read_chunk(plan, chunk, readers):
                    yield _to_user_columns(
                        plan, chunk.origin_number, rows, hidden=hidden, headers=headers
                    )
            except JsplanError as error:
                raise CarriedError(error) from None

    return read_all


def _to_user_columns(
    plan: PartitionPlan, origin_number: int, rows: pa.RecordBatch, *, hidden: bool, headers: bool
) -> pa.RecordBatch:
    """Convert messages to the columns of users.

    `origin` is their origin at the target, also for messages that were copied before.
    """
    task = plan.origin_tasks[origin_number]
    table = to_table(task.domain, task.stream, rows) if headers else None
    origins = format_origins(task.domain, task.stream, rows["seq"], rows["time"]).view(pa.string())
    count = rows.num_rows
    columns: dict[str, Any] = {
        "domain": pa.repeat(pa.scalar(task.domain), count),
        "stream": pa.repeat(pa.scalar(task.stream), count),
        "seq": rows["seq"],
        "time": rows["time"],
        "subject": rows["subject"].view(pa.string()),
        "headers": table["headers"] if table is not None else None,
        "data": rows["data"],
        "origin": origins,
        "_origin_number": pa.array([origin_number] * count, pa.int32()),
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
    ) + ", _origin_number INT, _block BINARY"


def _make_row_packer(plan: PartitionPlan) -> Callable[[Batches], Batches]:
    """Pack the remaining rows, which arrive in order, chunk by chunk."""

    def pack(batches: Batches) -> Batches:
        packers: dict[int, BlockPacker] = {}
        try:
            for batch in batches:
                for number, part in split_by_runs(batch["_origin_number"], _to_messages(batch)):
                    yield from map(
                        _to_block_batch,
                        packers.setdefault(number, BlockPacker(plan, number)).pack(part),
                    )
            for packer in packers.values():
                yield from map(_to_block_batch, packer.flush())
        except JsplanError as error:
            raise CarriedError(error) from None

    return pack


def _to_messages(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of `_ROW_COLUMNS` to the columns of `MESSAGE_SCHEMA`."""
    return pa.RecordBatch.from_arrays(
        [to_bytes(batch[name]) for name in _ROW_COLUMNS[1:]], schema=MESSAGE_SCHEMA
    )


def split_by_runs(numbers: pa.Array, rows: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Split rows into consecutive runs of the same number."""
    ends = pc.run_end_encode(numbers)
    start = 0
    for number, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield number, rows.slice(start, end - start)
        start = end


def _make_row_checker(plan: PartitionPlan) -> Callable[[Batches], Batches]:
    def check(batches: Batches) -> Batches:
        try:
            for batch in batches:
                if batch.num_rows:
                    yield check_returned_rows(plan, batch)
        except JsplanError as error:
            raise CarriedError(error) from None

    return check


# --- writers ---


def _make_block_writer(begin: WriterFactory) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            for partition, origin, block in zip(
                *(batch[name] for name in ("partition_number", "origin_number", "rows")),
                strict=True,
            ):
                for rows in unpack_rows(block.as_buffer()):
                    yield partition.as_py(), origin.as_py(), rows

    return partial(_write_parts, begin, parts)


def _make_filtered_writer(
    plan: PartitionPlan, begin: WriterFactory
) -> Callable[[Batches], Batches]:
    transform = plan.subject_transform

    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        compiled = transform.compile() if transform is not None else None
        for batch in batches:
            for number, messages in split_by_runs(batch["_origin_number"], _to_messages(batch)):
                origin = plan.origin_tasks[number]
                rows = rename_subjects(messages, compiled, origin.domain, origin.stream)
                for partition, part in split_by_runs(
                    pa.array(
                        choose_partitions(plan, number, rows["seq"].to_numpy(), rows["subject"])
                    ),
                    rows,
                ):
                    yield partition, number, part

    return partial(_write_parts, begin, parts)


def _make_row_writer(begin: WriterFactory) -> Callable[[Batches], Batches]:
    def parts(batches: Batches) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        for batch in batches:
            rows = pa.RecordBatch.from_arrays(
                [to_bytes(batch[name]) for name in MESSAGE_SCHEMA.names], schema=MESSAGE_SCHEMA
            )
            start = 0
            for number, of_partition in split_by_runs(batch["partition_number"], rows):
                for origin, part in split_by_runs(
                    batch["origin_number"].slice(start, of_partition.num_rows), of_partition
                ):
                    yield number, origin, part
                start += of_partition.num_rows

    return partial(_write_parts, begin, parts)


def _write_parts(
    begin: WriterFactory,
    parts: Callable[[Batches], Iterator[tuple[int, int, pa.RecordBatch]]],
    batches: Batches,
) -> Batches:
    """Write the parts of the partitions, and yield the result of each."""
    writer, current = None, -1
    try:
        for number, origin, rows in parts(batches):
            if is_retry():
                refuse_retry()
            if number != current:
                if writer is not None:
                    yield _to_result_batch(writer.finish())
                    writer.close()
                writer, current = begin(number), number
            assert writer is not None
            writer.write(origin, rows)
        if writer is not None:
            yield _to_result_batch(writer.finish())
    except JsplanError as error:
        yield _to_result_batch(error_to_result(error))
    finally:
        if writer is not None:
            writer.close()


def _to_result_batch(result: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"said": [json.dumps(result)]}, schema=_RESULT_SCHEMA)
