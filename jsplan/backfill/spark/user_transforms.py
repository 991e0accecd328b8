"""Load and apply the user's SQL and function, which maps a DataFrame to a DataFrame."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from jsplan.backfill.spark import register
from jsplan.backfill.spark.executors import first_error_line
from jsplan.errors import RefusedError

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
