"""The user's SQL and function over a DataFrame: its rows, and the message that it fails on.

The returned rows are checked before anything is written. Only the column `origin` identifies a row,
so the function may change the other columns. A row with an origin that was not read is an error: no
later run could find its message.

Spark does not report the row of a failure. So its messages are read again, in ever smaller parts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from jsplan.backfill.message_schema import encode_headers, format_origins, parse_times, to_bytes
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.protocol.columns import find_invalid_row
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.seq_ranges import count_sequences
from jsplan.backfill.spark import register
from jsplan.backfill.spark.executors import first_error_line
from jsplan.backfill.tasks.origin_task import find_existing, select_inside
from jsplan.backfill.tasks.partitioning import (
    PartitionPlan,
    ReadChunk,
    add_partition_numbers,
    read_chunk,
)
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import SeqRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jsplan.backfill.tasks.partitioning import TransformFunction


#: Columns that a transform must return, and their Spark types. Other columns are ignored.
REQUIRED_COLUMNS: Final = {
    "origin": "string",
    "subject": "string",
    "headers": "array<struct<name:string,value:string>>",
    "data": "binary",
}
_ORIGIN_PATTERN: Final = r"^(?P<stream>[^/]+/[^/]+)/(?P<seq>[0-9]{1,18})/(?P<time>[^/]+)$"


def filter_rows(frame: DataFrame, where: str) -> DataFrame:
    """Return the rows that match the SQL.

    Raises RefusedError for an invalid condition, and for a non-deterministic one.
    """
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a slow import

    try:
        filtered = frame.where(where)
        plan: Any = filtered._jdf.queryExecution().analyzed()  # noqa: SLF001 - the only way
        is_deterministic = bool(plan.deterministic())
    except PySparkException as error:
        columns = [name for name in frame.columns if not name.startswith("_")]
        raise RefusedError(
            f"where: {first_error_line(error)}",
            hint=f"Write a condition over {', '.join(columns)}.",
        ) from None
    if not is_deterministic:
        raise RefusedError(
            f"where: `{where}` is not deterministic. A resumed copy would select other messages"
        )
    return filtered


def apply_function(frame: DataFrame, function: TransformFunction) -> DataFrame:
    """Apply the user's function, and return the columns of `REQUIRED_COLUMNS`.

    Raises RefusedError for a missing or failing function, and for missing columns or wrong types.
    """
    register(frame.sparkSession)  # a function may read other streams
    try:
        returned = load_function(function)(frame)
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        raise RefusedError(
            f"transform {function}: {type(error).__name__}: {first_error_line(error)}"
            f"{_describe_error_line(error, function)}"
        ) from None
    schema = getattr(returned, "schema", None)
    if schema is None or not hasattr(returned, "mapInArrow"):
        raise RefusedError(
            f"transform {function} returns {type(returned).__name__}, not a DataFrame"
        )
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, wanted in REQUIRED_COLUMNS.items():
        if name not in types:
            raise RefusedError(
                f"transform {function} returns no column `{name}`",
                hint=f"Return {', '.join(REQUIRED_COLUMNS)}.",
            )
        if types[name] != wanted:
            raise RefusedError(
                f"transform {function} returns column `{name}` as {types[name]}. "
                f"It must be {wanted}"
            )
    checked: DataFrame = returned.select(*REQUIRED_COLUMNS)
    return checked


def load_function(function: TransformFunction) -> Callable[[DataFrame], Any]:
    """Load the function. Raises the errors of its file.

    Executors receive the code that it calls, so they need no file.
    """
    from pyspark import cloudpickle  # noqa: PLC0415 - a slow import

    name = f"jsplan_transform_{hashlib.sha256(function.text.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = function.path
    sys.modules[name] = module
    exec(compile(function.text, function.path, "exec"), module.__dict__)  # noqa: S102 - the user's own code
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types
    found: Callable[[DataFrame], Any] | None = getattr(module, function.name, None)
    if not callable(found):
        raise LookupError(f"{function.path} has no function {function.name}")
    return found


def _describe_error_line(error: Exception, function: TransformFunction) -> str:
    """Return the line of the user's file where the error happened."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == function.path else line
        trace = trace.tb_next
    return f" (line {line})" if line else ""


# --- the message on which a function fails --------------------------------------------------------

#: A part with this number of sequences is not split.
_SMALLEST = 1


def find_failing_message(plan: PartitionPlan, fails: Callable[[PartitionPlan], bool]) -> str | None:
    """Return the origin of a message on which the function fails alone, or None.

    The function may fail only on several messages together.
    """
    spans = [
        (number, span) for number, origin in enumerate(plan.origin_tasks) for span in origin.spans
    ]
    while (count := count_sequences(span for _, span in spans)) > _SMALLEST:
        first, second = _split_after(spans, count // 2)
        spans = first if fails(_restrict_plan(plan, first)) else second
    if not spans or not fails(_restrict_plan(plan, spans)):
        return None
    number, span = spans[0]
    task = plan.origin_tasks[number]
    for rows in read_chunk(plan, ReadChunk(number, (span,))):
        return str(
            format_origins(task.domain, task.stream, rows["seq"], rows["time"])[0].as_py().decode()
        )
    return None


def _split_after(
    spans: list[tuple[int, SeqRange]], count: int
) -> tuple[list[tuple[int, SeqRange]], list[tuple[int, SeqRange]]]:
    """Split the ranges after the first `count` sequences."""
    first, second = list[tuple[int, SeqRange]](), list[tuple[int, SeqRange]]()
    for number, span in spans:
        cut = span.first + max(0, min(count, span.size))
        if cut > span.first:
            first.append((number, SeqRange(span.first, cut - 1)))
        if cut <= span.last:
            second.append((number, SeqRange(cut, span.last)))
        count -= span.size
    return first, second


def _restrict_plan(plan: PartitionPlan, spans: list[tuple[int, SeqRange]]) -> PartitionPlan:
    origins = tuple(
        replace(origin, spans=tuple(span for n, span in spans if n == number))
        for number, origin in enumerate(plan.origin_tasks)
    )
    return replace(plan, origin_tasks=origins)


def check_returned_rows(plan: PartitionPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows with `origin`, `subject`, `headers` and `data` to `PARTITIONED_SCHEMA`.

    Raises RefusedError for the first row that is not a valid message. That a message is returned
    twice is found by writers and by the driver, who know all rows.
    """
    origins, subject, data = (to_bytes(batch[name]) for name in ("origin", "subject", "data"))
    headers = batch["headers"]
    if pa.types.is_large_list(headers.type):
        headers = headers.cast(pa.list_(headers.type.value_type))
    numbers, seqs, times = _parse_origins(plan, origins)
    if (numbers < 0).any():
        raise _build_refusal(
            plan,
            origins,
            int(np.argmin(numbers)),
            "an origin that was not read",
            hint="Leave the column `origin` unchanged, and return no other rows.",
        )
    if (found := find_invalid_row(subject, headers, data)) is not None:
        raise _build_refusal(plan, origins, *found)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(seqs), pa.array(times), subject, encode_headers(headers), data],
        schema=MESSAGE_SCHEMA,
    )
    return add_partition_numbers(plan, numbers, rows)


def _parse_origins(plan: PartitionPlan, origins: pa.Array) -> tuple[SeqArray, SeqArray, SeqArray]:
    """Return origin number (-1: not one that was read), sequence and time of each row."""
    found = pc.extract_regex(pc.fill_null(origins, b""), pattern=_ORIGIN_PATTERN)
    stream, seq, time = (pc.struct_field(found, part) for part in ("stream", "seq", "time"))
    seqs = pc.fill_null(seq.view(pa.string()).cast(pa.int64()), 0).to_numpy()
    times = parse_times(pc.fill_null(time, b""), invalid=0)
    numbers = np.full(len(seqs), -1, dtype=np.int64)
    for number, task in enumerate(plan.origin_tasks):
        own = pc.equal(stream, f"{task.domain}/{task.stream}".encode())
        was_read = pc.fill_null(own, False).to_numpy(zero_copy_only=False) & (times > 0)
        was_read &= select_inside(seqs, task.spans) & ~find_existing(task.existing, seqs, times)
        numbers[was_read] = number
    return numbers, seqs, times


def _build_refusal(
    plan: PartitionPlan, origins: pa.Array, row: int, problem: str, hint: str | None = None
) -> RefusedError:
    origin = origins[row].as_py()
    shown = origin.decode(errors="replace") if origin is not None else "no origin"
    return RefusedError(
        f"transform {plan.transforms.transform} returned a row ({shown}) with {problem}. "
        "Nothing of this attempt was copied",
        hint=hint,
    )
