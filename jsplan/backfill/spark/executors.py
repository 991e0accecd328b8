"""Run tasks on the executors of Spark.

Each task reads and writes in one process: only its results enter the JVM, no message does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from jsplan.errors import ApiError, JsplanError, RefusedError
from jsplan.planning.backfill.deadline import DeadlinePassedError

if TYPE_CHECKING:
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession

#: Task that yields results for JSON. May raise JsplanError.
Task = Callable[[], Iterator[dict[str, Any]]]


class TaskFailedError(ApiError):
    """Error of a task that another attempt may avoid.

    A lost link, a sealed stream or a dead worker, for example.
    """


class WorkerDiedError(TaskFailedError):
    """Error of a task that ended without a result: its worker or Spark died, or a bug."""


def run_tasks(
    session: SparkSession, tasks: Sequence[Task], name: str
) -> list[list[dict[str, Any]]]:
    """Run each task once, in parallel on the available cores; return the results in order.

    Raises the error of the first failed task: RefusedError for a permanent one, else
    TaskFailedError.
    """
    context = session.sparkContext
    # not a DataFrame: SQL takes longer to start than most small copies
    lines = context.parallelize(range(len(tasks)), len(tasks)).mapPartitions(
        _make_task_mapper(list(tasks))
    )
    results: list[list[dict[str, Any]]] = [[] for _ in tasks]
    for number, line in collect_rows(session, lines, name):
        results[number].append(json.loads(line))
    for task_results in results:
        raise_failure(task_results)
    return results


def collect_rows(session: SparkSession, frame: DataFrame | RDD[Any], name: str) -> list[Any]:
    """Collect the rows of a small frame; `name` appears in the job list of Spark.

    Raises WorkerDiedError.
    """
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415 - it has no stubs
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a slow import

    session.sparkContext.setJobDescription(name)
    try:
        return frame.collect()
    except (PySparkException, Py4JError) as error:
        raise_worker_death(error)


def _make_task_mapper(
    tasks: list[Task],
) -> Callable[[Iterable[int]], Iterator[tuple[int, str]]]:
    def run_all(numbers: Iterable[int]) -> Iterator[tuple[int, str]]:
        retry = is_retry()
        for number in numbers:
            for result in _run_task(refuse_retry if retry else tasks[number]):
                yield number, json.dumps(result)

    return run_all


def is_retry() -> bool:
    """Return True if Spark ran this task before. The first run may still be active.

    The driver must first check what that run has written.
    """
    from pyspark import TaskContext  # noqa: PLC0415

    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def refuse_retry() -> Iterator[dict[str, Any]]:
    """Raise ApiError instead of a task that Spark runs again."""
    raise ApiError(
        "Spark ran a task again, because its first run died or is slow",
        hint="The next attempt resumes it.",
    )


def _run_task(task: Task) -> Iterator[dict[str, Any]]:
    try:
        yield from task()
    except JsplanError as error:
        yield error_to_result(error)


def error_to_result(error: JsplanError) -> dict[str, Any]:
    """Convert an error to a result of a task, for `raise_failure`."""
    closed = isinstance(error, DeadlinePassedError)
    return {
        "error": str(error),
        "hint": error.hint,
        "for_good": isinstance(error, RefusedError),
        "closed": closed,
    }


def raise_failure(results: list[dict[str, Any]]) -> None:
    """Raise the first error among the results.

    It is a RefusedError, DeadlinePassedError or TaskFailedError.
    """
    for result in results:
        if "error" in result:
            if result["closed"]:
                raise DeadlinePassedError(result["error"], hint=result["hint"])
            raise (RefusedError if result["for_good"] else TaskFailedError)(
                result["error"], hint=result["hint"]
            )


def raise_worker_death(error: Exception) -> NoReturn:
    """Raise WorkerDiedError for an error of Spark that has no other meaning."""
    raise WorkerDiedError(
        f"a worker died: {_first_error_line(error)}", hint="The next attempt resumes it."
    ) from None


def _first_error_line(error: Exception) -> str:
    java = getattr(error, "java_exception", None)  # py4j's own text says nothing about the cause
    text = str(error) if java is None else str(java.getMessage())
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__
