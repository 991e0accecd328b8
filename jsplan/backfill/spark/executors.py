"""Runs the tasks of a job on Spark's executors, each fused: what it reads and writes never enters the JVM, only what it says does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from jsplan.backfill.windows import WindowClosedError
from jsplan.errors import ApiError, JsplanError, RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a task yields: things that JSON can say. It may raise JsplanError.
Task = Callable[[], Iterator[dict[str, Any]]]
_RESULT_SCHEMA: Final = pa.schema([("task", pa.int64()), ("said", pa.string())])


class TaskFailedError(ApiError):
    """A task ended with an error that another attempt may not meet: a link that broke, a stream that was sealed, a worker that died."""


class WorkerDiedError(TaskFailedError):
    """A task ended without a word of its own: its worker or its Spark died, or it ran into a bug."""


def run_tasks(
    session: SparkSession, tasks: Sequence[Task], name: str
) -> list[list[dict[str, Any]]]:
    """Carry out each task once, at the same time as far as there are cores; what each said, in order.

    Raises RefusedError for what a task refuses for good, else TaskFailedError: of the first task that failed.
    """
    frame = session.range(0, len(tasks), 1, len(tasks)).mapInArrow(
        _make_task_mapper(list(tasks)), "task BIGINT, said STRING"
    )
    found: list[list[dict[str, Any]]] = [[] for _ in tasks]
    for row in collect_rows(session, frame, name):
        found[row.task].append(json.loads(row.said))
    for said in found:
        raise_failure(said)
    return found


def collect_rows(session: SparkSession, frame: DataFrame, name: str) -> list[Any]:
    """The rows of a small frame; `name` says what it is for where Spark lists its jobs. Raises WorkerDiedError."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no stubs
    from pyspark.errors import PySparkException  # noqa: PLC0415 - it costs a second, and only a job needs it

    session.sparkContext.setJobDescription(name)
    try:
        return frame.collect()
    except (PySparkException, Py4JError) as error:
        raise WorkerDiedError(
            f"a worker died: {_first_error_line(error)}", hint="The next attempt resumes it."
        ) from None


def _make_task_mapper(
    tasks: list[Task],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run_all(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        again = is_retry()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for said in _run_task(refuse_retry if again else tasks[number]):
                    yield pa.RecordBatch.from_pydict(
                        {"task": [number], "said": [json.dumps(said)]}, schema=_RESULT_SCHEMA
                    )

    return run_all


def is_retry() -> bool:
    """Whether Spark has begun this task before, and may still be at it. What that has written is for the driver to look at first."""
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def refuse_retry() -> Iterator[dict[str, Any]]:
    """Raise ApiError in the place of a task that Spark began again."""
    raise ApiError(
        "Spark began a task again whose first attempt died, or is slow",
        hint="The next attempt resumes it.",
    )


def _run_task(task: Task) -> Iterator[dict[str, Any]]:
    try:
        yield from task()
    except JsplanError as error:
        yield error_to_result(error)


def error_to_result(error: JsplanError) -> dict[str, Any]:
    """An error as what a task says; `raise_failure` is the way back."""
    closed = isinstance(error, WindowClosedError)
    return {
        "error": str(error),
        "hint": error.hint,
        "for_good": isinstance(error, RefusedError),
        "closed": closed,
    }


def raise_failure(said: list[dict[str, Any]]) -> None:
    """Raise the first error that is among what was said: RefusedError, WindowClosedError or TaskFailedError."""
    for one in said:
        if "error" in one:
            if one["closed"]:
                raise WindowClosedError(one["error"], hint=one["hint"])
            raise (RefusedError if one["for_good"] else TaskFailedError)(
                one["error"], hint=one["hint"]
            )


def _first_error_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
