"""Run a partitioned copy on Spark: readers, SQL and function of the user, then writers.

Partitions that read for themselves stay in one process. All others are rows of one format, which
are shuffled and sorted, in blocks where they are in order already. No partition is written before
all readers have finished, so no partition continues where another reader failed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import TABLE_SCHEMA, format_origins, parse_headers, to_bytes
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.spark.executors import (
    CarriedError,
    Failure,
    UserFunctionError,
    collect_frame,
    is_retry,
    map_batches,
    map_numbers,
    raise_failure,
    refuse_retry,
    run_tasks,
)
from jsplan.backfill.spark.user_transforms import (
    apply_function,
    check_returned_rows,
    filter_rows,
    find_failing_message,
)
from jsplan.backfill.tasks.archive_writer import ChunkWriter
from jsplan.backfill.tasks.partition_writer import PartitionWriter, copy_partitions
from jsplan.backfill.tasks.partitioning import (
    PARTITIONED_SCHEMA,
    PartitionPlan,
    add_partition_numbers,
    read_chunk,
)
from jsplan.errors import JsplanError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE_COLUMNS: Final = ("_origin_number", "seq", "time", "subject", "_block", "data")
#: Columns that readers make: those of users, and two for what SQL keeps.
_READ_SCHEMA: Final = pa.schema(
    [*TABLE_SCHEMA, ("_origin_number", pa.int32()), ("_block", pa.binary())]
)
_BLOCK_SCHEMA: Final = pa.schema(
    [
        ("partition_number", pa.int32()),
        ("origin_number", pa.int32()),
        ("seq", pa.int64()),
        ("block", pa.binary()),
    ]
)
#: A result of a writer, pickled.
_RESULT_SCHEMA: Final = pa.schema([("result", pa.binary())])
Batches = Iterator[pa.RecordBatch]
BatchMapper = Callable[[Batches], Batches]


#: Creates the writer of the partition, or chunk of an archive, with a number.
WriterFactory = Callable[[int], PartitionWriter | ChunkWriter]


def run_plan(session: SparkSession, plan: PartitionPlan, name: str) -> list[Any]:
    """Run a plan, and return the result of each partition or chunk with messages.

    With SQL alone, one task reads, filters and writes each chunk of an archive, which is finished
    with the task. A function may return rows in any order, so they are sorted again. Raises
    RefusedError, and TaskFailedError for an error that another attempt may avoid.
    """
    if plan.is_fused or plan.has_single_reader:
        numbers = range(len(plan.partitions)) if plan.is_fused else [None]
        tasks = [partial(copy_partitions, plan, number) for number in numbers]
        return [result for of_task in run_tasks(session, tasks, name) for result in of_task]
    write = _make_writer(partial(ChunkWriter if plan.chunks else PartitionWriter, plan))
    if plan.transforms.transform is not None:
        return _write_sorted(session, plan, build_rows(session, plan), write, name)
    if plan.chunks:
        frame = build_rows(session, plan, write, _RESULT_SCHEMA)
        return _collect_results(session, plan, frame, name)
    blocks = build_rows(session, plan, _pack_blocks, _BLOCK_SCHEMA)
    return _write_sorted(session, plan, blocks, write, name)


def _write_sorted(
    session: SparkSession, plan: PartitionPlan, rows: DataFrame, write: BatchMapper, name: str
) -> list[Any]:
    """Write each partition in order, in its own Spark partition."""
    parts = _repartition(rows, len(plan.chunks) or len(plan.partitions))
    ordered = parts.sortWithinPartitions("partition_number", "origin_number", "seq")
    return _collect_results(session, plan, map_batches(ordered, write, _RESULT_SCHEMA), name)


def _collect_results(
    session: SparkSession, plan: PartitionPlan, frame: DataFrame, name: str
) -> list[Any]:
    try:
        rows = collect_frame(session, frame, plan.transforms, name)
    except UserFunctionError as error:
        origin = find_failing_message(plan, partial(_function_fails, session, name))
        raise RefusedError(
            f"{error}{f', at {origin}' if origin else ''}. Nothing of this attempt was copied"
        ) from None
    results = [pickle.loads(row.result) for row in rows]  # noqa: S301 - of our own tasks
    raise_failure(results)
    return results


def _function_fails(session: SparkSession, name: str, plan: PartitionPlan) -> bool:
    """Return True if the function fails on what this plan reads."""
    if not any(origin.spans for origin in plan.origin_tasks):
        return False
    try:
        collect_frame(session, build_rows(session, plan).groupBy().count(), plan.transforms, name)
    except UserFunctionError:
        return True
    return False


# --- rows -----------------------------------------------------------------------------------------


def build_rows(
    session: SparkSession,
    plan: PartitionPlan,
    then: BatchMapper | None = None,
    schema: pa.Schema = PARTITIONED_SCHEMA,
) -> DataFrame:
    """Build the messages to store, after SQL, function and subject transform.

    They have the columns of `PARTITIONED_SCHEMA`, and are in order within each chunk unless there
    is a function. `then` maps them on in the same process. Raises RefusedError for invalid SQL or
    an invalid function.
    """
    transforms = plan.transforms
    if transforms.transform is not None:
        frame = _read_chunks(session, plan, TABLE_SCHEMA.names)
        frame = filter_rows(frame, transforms.where) if transforms.where is not None else frame
        frame, convert = apply_function(frame, transforms.transform), check_returned_rows
    else:
        frame, convert = _read_selected(session, plan, transforms.where), _convert_rows
    return map_batches(frame, _make_converter(partial(convert, plan), then), schema)


def _read_selected(session: SparkSession, plan: PartitionPlan, where: str | None) -> DataFrame:
    """Read the messages that match the SQL, with raw header blocks."""
    if where is None:
        return _read_chunks(session, plan, _MESSAGE_COLUMNS)
    names = [name for name in _READ_SCHEMA.names if name != "headers" or name in where.lower()]
    return filter_rows(_read_chunks(session, plan, names), where).select(*_MESSAGE_COLUMNS)


def _make_converter(
    convert: Callable[[pa.RecordBatch], pa.RecordBatch], then: BatchMapper | None
) -> BatchMapper:
    def convert_all(batches: Batches) -> Batches:
        try:
            yield from (convert(batch) for batch in batches if batch.num_rows)
        except JsplanError as error:
            raise CarriedError(error) from None

    return convert_all if then is None else lambda batches: then(convert_all(batches))


def _convert_rows(plan: PartitionPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows of `_MESSAGE_COLUMNS` to `PARTITIONED_SCHEMA`."""
    number, *columns = (batch[name] for name in _MESSAGE_COLUMNS)
    rows = pa.RecordBatch.from_arrays([to_bytes(one) for one in columns], schema=MESSAGE_SCHEMA)
    return add_partition_numbers(plan, number.to_numpy(), rows)


def _read_chunks(session: SparkSession, plan: PartitionPlan, names: Sequence[str]) -> DataFrame:
    """Read each chunk as messages, with these columns. Many chunks share a task."""
    cores = session.sparkContext.defaultParallelism
    chunks = plan.split_into_chunks(2 * cores)
    schema = pa.schema([_READ_SCHEMA.field(name) for name in names])

    def read(number: int) -> Batches:
        origin = chunks[number].origin_number
        for rows in read_chunk(plan, chunks[number], cores):
            yield _select_columns(plan, origin, rows, schema)

    return map_numbers(session, len(chunks), min(len(chunks), 4 * cores), read, schema)


def _select_columns(
    plan: PartitionPlan, origin_number: int, rows: pa.RecordBatch, schema: pa.Schema
) -> pa.RecordBatch:
    """Convert messages to the columns of a schema.

    `origin` is their origin at the target, also for messages that were copied before.
    """
    task, count = plan.origin_tasks[origin_number], rows.num_rows
    columns: dict[str, Any] = {name: rows[name] for name in ("seq", "time", "data")} | {
        "domain": pa.repeat(pa.scalar(task.domain), count),
        "stream": pa.repeat(pa.scalar(task.stream), count),
        "subject": rows["subject"].view(pa.string()),
        "_origin_number": pa.array([origin_number] * count, pa.int32()),
        "_block": rows["headers"],
    }
    if "headers" in schema.names:
        columns["headers"] = parse_headers(rows["headers"])
    if "origin" in schema.names:
        origins = format_origins(task.domain, task.stream, rows["seq"], rows["time"])
        columns["origin"] = origins.view(pa.string())
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _repartition(frame: DataFrame, count: int) -> DataFrame:
    """Assign partitions to Spark partitions. Partitions in the same one are written in turn."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - it costs a second, and only a job needs it

    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, f.col("partition_number"))
    return frame.repartition(count, "partition_number")


def _pack_blocks(batches: Batches) -> Batches:
    """Pack rows in order into blocks; many small values cost Spark twice the time."""
    for partition, origin, rows in (part for batch in batches for part in split_rows(batch)):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, MESSAGE_SCHEMA) as stream:
            stream.write_batch(rows)
        block = sink.getvalue().to_pybytes()
        values = partition, origin, rows["seq"][0].as_py(), block
        row = dict(zip(_BLOCK_SCHEMA.names, values, strict=True))
        yield pa.RecordBatch.from_pylist([row], schema=_BLOCK_SCHEMA)


def _unpack_blocks(batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    for partition, origin, _, block in zip(*batch.columns, strict=True):
        with pa.ipc.open_stream(block.as_buffer()) as stream:
            yield from ((partition.as_py(), origin.as_py(), rows) for rows in stream)


def split_rows(batch: pa.RecordBatch) -> Iterator[tuple[int, int, pa.RecordBatch]]:
    """Split rows of `PARTITIONED_SCHEMA`, or blocks, into runs of a partition and an origin."""
    if "block" in batch.schema.names:
        yield from _unpack_blocks(batch)
        return
    for partition, of_partition in _split_runs(batch, "partition_number"):
        for origin, part in _split_runs(of_partition, "origin_number"):
            columns = [to_bytes(part[name]) for name in MESSAGE_SCHEMA.names]
            yield partition, origin, pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _split_runs(batch: pa.RecordBatch, name: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    ends, start = pc.run_end_encode(batch[name]), 0
    for number, end in zip(ends.values.to_pylist(), ends.run_ends.to_pylist(), strict=True):
        yield number, batch.slice(start, end - start)
        start = end


# --- writers --------------------------------------------------------------------------------------


def _make_writer(begin: WriterFactory) -> BatchMapper:
    """Make a mapper that writes the parts of the partitions, and yields the result of each."""

    def write(batches: Batches) -> Batches:
        writer, current = None, -1
        try:
            for number, origin, rows in (part for batch in batches for part in split_rows(batch)):
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
            yield _to_result_batch(Failure.of(error))
        finally:
            if writer is not None:
                writer.close()

    return write


def _to_result_batch(result: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"result": [pickle.dumps(result)]})
