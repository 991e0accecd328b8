"""The runner of the tasks of a backfill: Spark, or threads in tests of the copier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from jsplan.options import Observer

if TYPE_CHECKING:
    from jsplan.backfill.parquet.writer import ExportChunk
    from jsplan.backfill.tasks.partitioning import PartitionPlan

Task = Callable[[], Iterator[dict[str, Any]]]


class TaskRunner(Protocol):
    """Runs tasks, and returns the JSON values that they yield.

    The methods raise RefusedError for a permanent error, WindowClosedError, and ApiError for one
    that another attempt may avoid. `start_seconds` is the time that a caller waited for the start.
    """

    start_seconds: float

    def warm_up(self) -> None:
        """Begin to start it, while the caller does other things."""

    async def start(self) -> None:
        """Start it, if it has not started. Raises NotAvailableError."""

    async def count_slots(self) -> int:
        """Return the number of tasks that run at the same time."""

    async def run_one(self, task: Task, name: str) -> list[dict[str, Any]]:
        """Run one task, before the start in a thread."""

    async def run_partitions(self, plan: PartitionPlan, name: str) -> list[dict[str, Any]]:
        """Copy into staging streams; return the result of each partition with messages."""

    async def run_export(
        self, plan: PartitionPlan, chunks: Sequence[ExportChunk], name: str
    ) -> list[dict[str, Any]]:
        """Write transformed messages into an archive."""

    async def run(self, tasks: Sequence[Task], name: str) -> list[list[dict[str, Any]]]:
        """Run tasks in parallel; return the values of each."""

    async def close(self) -> None:
        """Cancel running tasks, and stop what was started; never raises."""


#: Creates a runner for an observer and the master of Spark (None: `local[*]`).
RunnerFactory = Callable[[Observer, str | None], TaskRunner]
_replacement: ContextVar[RunnerFactory | None] = ContextVar("task_runner", default=None)


def create_runner(observer: Observer, master: str | None = None) -> TaskRunner:
    """Create the runner of a command: Spark, which starts at its first task."""
    from jsplan.backfill.spark_runner import SparkRunner  # noqa: PLC0415 - an implementation

    return (_replacement.get() or SparkRunner)(observer, master)


@contextmanager
def use_runner(factory: RunnerFactory) -> Iterator[None]:
    """Run tasks with another runner than Spark, for tests of the copier."""
    token = _replacement.set(factory)
    try:
        yield
    finally:
        _replacement.reset(token)
