"""Run tasks on the executors of Spark, and say what an error of Spark means.

Each task reads and writes in one process: only its results enter the JVM, no message does. Spark
sends an exception of a Python worker to the driver as its formatted traceback, unless
`SPARK_HIDE_TRACEBACK` is set in that process, which ends with the exception.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec
from msgspec import Struct

from jsplan.errors import ApiError, JsplanError, RefusedError
from jsplan.planning.backfill.model import DeadlinePassedError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

    from jsplan.backfill.tasks.partitioning import TransformSpec


#: Task that yields results, which can be pickled. May raise JsplanError.
Task = Callable[[], Iterator[Any]]

#: Pattern of a transported error in the message of Spark.
_ERROR_PATTERN: Final = re.compile(r"jsplan-said:([A-Za-z0-9+/=]+):")
#: Bytes of a batch from Spark to Python, where the release supports the setting.
_BATCH_BYTES: Final = "spark.sql.execution.arrow.maxBytesPerBatch"
#: Spark's names of errors in the user's SQL.
_SQL_ERRORS: Final = (
    "ArithmeticException", "NumberFormatException", "DateTimeException",
    "ArrayIndexOutOfBoundsException", "SparkRuntimeException",
)  # fmt: skip


class TaskFailedError(ApiError):
    """Error of a task that another attempt may avoid.

    A lost link, a sealed stream or a dead worker, for example.
    """


class WorkerDiedError(TaskFailedError):
    """Error of a task that ended without a result: its worker or Spark died, or a bug."""


class UserFunctionError(RefusedError):
    """Error of a user's function while it ran."""


class Failure(Struct, frozen=True):
    """An error of jsplan as the result of a task."""

    text: str
    hint: str | None
    is_permanent: bool
    is_late: bool

    @classmethod
    def of(cls, error: JsplanError) -> Failure:
        """Convert an error."""
        is_late = isinstance(error, DeadlinePassedError)
        return cls(str(error), error.hint, isinstance(error, RefusedError), is_late)

    def throw(self) -> NoReturn:
        """Raise RefusedError, DeadlinePassedError or TaskFailedError."""
        if self.is_late:
            raise DeadlinePassedError(self.text, hint=self.hint)
        raise (RefusedError if self.is_permanent else TaskFailedError)(self.text, hint=self.hint)


class CarriedError(Exception):
    """Error of jsplan that Spark transports from a reader to the driver."""

    def __init__(self, error: JsplanError) -> None:
        text = base64.b64encode(msgspec.json.encode(Failure.of(error))).decode()
        super().__init__(f"jsplan-said:{text}:")


def run_tasks(
    session: SparkSession, tasks: Sequence[Task], name: str, *, repeatable: bool = False
) -> list[list[Any]]:
    """Run each task once, in parallel on the available cores; return the results in order.

    Tasks that only read are `repeatable`: Spark runs one again whose worker died. Raises the error
    of the first failed task: RefusedError for a permanent one, else TaskFailedError.
    """
    context = session.sparkContext
    # not a DataFrame: SQL takes longer to start than most small copies
    numbers = context.parallelize(range(len(tasks)), len(tasks))
    results: list[list[Any]] = [[] for _ in tasks]
    for number, result in collect(
        session, numbers.mapPartitions(_make_mapper([*tasks], repeatable=repeatable)), name
    ):
        results[number].append(result)
    for task_results in results:
        raise_failure(task_results)
    return results


def _make_mapper(
    tasks: list[Task], *, repeatable: bool = False
) -> Callable[[Iterable[int]], Iterator[tuple[int, Any]]]:
    def run_all(numbers: Iterable[int]) -> Iterator[tuple[int, Any]]:
        retry = not repeatable and is_retry()
        for number in numbers:
            try:
                for result in (refuse_retry if retry else tasks[number])():
                    yield number, result
            except JsplanError as error:
                yield number, Failure.of(error)

    return run_all


def is_retry() -> bool:
    """Return True if Spark ran this task before. The first run may still be active.

    The driver must first check what that run has written.
    """
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def refuse_retry() -> Iterator[Any]:
    """Raise ApiError instead of a task that Spark runs again."""
    raise ApiError(
        "Spark ran a task again, because its first run died or is slow",
        hint="The next attempt resumes it.",
    )


def raise_failure(results: Iterable[Any]) -> None:
    """Raise the first error among the results, as `Failure.throw` does."""
    for result in results:
        if isinstance(result, Failure):
            result.throw()


def map_batches(
    frame: DataFrame,
    mapper: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Map the batches of a frame to others with this schema."""
    from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - a slow import

    return frame.mapInArrow(mapper, from_arrow_schema(schema))


def map_numbers(
    session: SparkSession,
    count: int,
    tasks: int,
    read: Callable[[int], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """Return the rows that `read` yields for each number, in tasks that share the numbers."""

    def read_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number in (number for batch in batches for number in batch.column(0).to_pylist()):
            try:
                yield from read(number)
            except JsplanError as error:
                raise CarriedError(error) from None

    return map_batches(session.range(0, count, 1, max(1, tasks)), read_all, schema)


def collect(
    session: SparkSession,
    rows: RDD[Any] | DataFrame,
    name: str,
    transforms: TransformSpec | None = None,
) -> list[Any]:
    """Collect a few rows; `name` appears in the job list of Spark.

    Raises what an error of Spark means: an error of jsplan, of the user's function or SQL, or
    WorkerDiedError.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no stubs
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a slow import

    session.sparkContext.setJobDescription(name)
    try:
        return rows.collect()
    except (PySparkException, Py4JError) as error:
        _raise_meaning(error, transforms)


def collect_frame(
    session: SparkSession, frame: DataFrame, transforms: TransformSpec, name: str
) -> list[Any]:
    """Collect the rows of a frame, with larger batches. Raises as `collect`."""
    before = session.conf.get(_BATCH_BYTES, None)
    try:
        session.conf.set(_BATCH_BYTES, str(8 << 20))
        return collect(session, frame, name, transforms)
    finally:
        with contextlib.suppress(Exception):  # the session may have stopped
            if before is None:
                session.conf.unset(_BATCH_BYTES)
            else:
                session.conf.set(_BATCH_BYTES, before)


def _raise_meaning(error: Exception, transforms: TransformSpec | None) -> NoReturn:
    text, function = str(error), transforms.transform if transforms is not None else None
    if (match := _ERROR_PATTERN.search(text)) is not None:
        msgspec.json.decode(base64.b64decode(match[1]), type=Failure).throw()
    _, traceback, rest = text.partition("Traceback (most recent call last)")
    if function is not None and traceback and function.path in text:
        raise UserFunctionError(f"transform {function}: {_last_line(rest)}") from None
    if transforms is not None and transforms.needs_rows and type(error).__name__ in _SQL_ERRORS:
        problem = f"{type(error).__name__} {first_error_line(error)}"
        if function is not None:
            raise UserFunctionError(f"transform {function}: {problem}") from None
        raise RefusedError(f"where: {problem}. Nothing of this attempt was copied") from None
    raise WorkerDiedError(
        f"a worker died: {first_error_line(error)}", hint="The next attempt resumes it."
    ) from None


def _last_line(traceback: str) -> str:
    """Return the error at the end of a traceback."""
    pattern = r"[A-Za-z_.]+(Error|Exception|Interrupt)?: "
    lines = (line.strip() for line in traceback.splitlines())
    return next((line for line in lines if re.match(pattern, line)), "it failed")[:300]


def first_error_line(error: BaseException) -> str:
    """Return the message of an error, without the text that Spark adds."""
    java = getattr(error, "java_exception", None)  # py4j's own text says nothing about the cause
    text = str(error) if java is None else str(java.getMessage())
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


class SourceError(JsplanError):
    """An error of the format `jetstream`, with what to do about it in its text."""


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Raise a JsplanError of the block, or of the decorated method, as a SourceError.

    Spark then shows no traceback. A method that yields needs the block: a decorator ends with the
    call, before the first row.
    """
    try:
        yield
    except JsplanError as error:
        os.environ["SPARK_HIDE_TRACEBACK"] = "true"
        raise SourceError(error.full_text) from None
