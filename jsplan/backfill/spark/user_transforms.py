"""The user's SQL and function over a DataFrame, and the message that the function fails on.

Spark does not report the row. So its messages are read again, in ever smaller parts.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from jsplan.backfill.message_schema import format_origins
from jsplan.backfill.seq_ranges import count_sequences
from jsplan.backfill.spark import register
from jsplan.backfill.spark.executors import first_error_line
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, read_chunk
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
