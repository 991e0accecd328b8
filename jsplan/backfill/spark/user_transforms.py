"""What users write for their messages: SQL, and a function from DataFrame to DataFrame. Loaded, applied and checked here; what becomes
of the rows is left to `shaping`.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from jsplan.errors import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from jsplan.backfill.tasks.partitioning import TransformFunction

#: The columns that a transform has to return, and their types as Spark writes them. Others are not looked at.
REQUIRED_COLUMNS: Final = {
    "origin": "string", "subject": "string", "headers": "array<struct<name:string,value:string>>", "data": "binary",
}  # fmt: skip


def filter_rows(frame: DataFrame, where: str) -> DataFrame:
    """The rows for which the SQL is true. Raises RefusedError for what is no condition over the columns, or comes out anew each time."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - it costs a second, and only a job needs it

    try:
        found = frame.where(where)
        plan: Any = found._jdf.queryExecution().analyzed()  # noqa: SLF001 - there is no other way to ask
        settled = bool(plan.deterministic())
    except PySparkException as error:
        raise RefusedError(
            f"where: {first_error_line(error)}",
            hint=f"It is a condition over {', '.join(_user_columns(frame))}.",
        ) from None
    if not settled:
        raise RefusedError(
            f"where: `{where}` comes out otherwise each time, so a copy that goes on would choose other messages"
        )
    return found


def apply_function(frame: DataFrame, function: TransformFunction) -> DataFrame:
    """What a user's function makes of the rows, as the columns of `REQUIRED_COLUMNS`. Raises RefusedError for a function that is not there or
    fails, and for columns that are missing or of another type.
    """
    try:
        found = load_function(function)(frame)
    except Exception as error:  # noqa: BLE001 - whatever the user's code raises is the user's to see
        raise RefusedError(
            f"transform {function}: {type(error).__name__}: {first_error_line(error)}{_describe_error_line(error, function)}"
        ) from None
    schema = getattr(found, "schema", None)
    if schema is None or not hasattr(found, "mapInArrow"):
        raise RefusedError(f"transform {function} returns {type(found).__name__}, not a DataFrame")
    types = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name, wanted in REQUIRED_COLUMNS.items():
        if name not in types:
            raise RefusedError(
                f"transform {function} returns no column `{name}`",
                hint=f"It has to return {', '.join(REQUIRED_COLUMNS)}.",
            )
        if types[name] != wanted:
            raise RefusedError(
                f"transform {function} returns column `{name}` as {types[name]}, and it has to be {wanted}"
            )
    checked: DataFrame = found.select(*REQUIRED_COLUMNS)
    return checked


def load_function(function: TransformFunction) -> Callable[[DataFrame], Any]:
    """The function. What it calls travels to executors with it: they need no file. Raises whatever its file raises."""
    from pyspark import cloudpickle  # noqa: PLC0415 - only where there is a job

    name = f"jsplan_transform_{hashlib.sha256(function.text.encode()).hexdigest()[:16]}"
    module = ModuleType(name)
    module.__file__ = function.path
    sys.modules[name] = module
    exec(compile(function.text, function.path, "exec"), module.__dict__)  # noqa: S102 - it is what the user asks for
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]  # it has no types
    found: Callable[[DataFrame], Any] | None = getattr(module, function.name, None)
    if not callable(found):
        raise LookupError(f"{function.path} has no function {function.name}")
    return found


def _user_columns(frame: DataFrame) -> list[str]:
    return [name for name in frame.columns if not name.startswith("_")]


def _describe_error_line(error: Exception, function: TransformFunction) -> str:
    """Where in the user's file it happened."""
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == function.path else line
        trace = trace.tb_next
    return f" (line {line})" if line else ""


def first_error_line(error: BaseException) -> str:
    """What an error says, without what Spark says around it."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0].strip()[:300] if lines else type(error).__name__
