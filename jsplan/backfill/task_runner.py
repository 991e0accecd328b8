"""The runner of the tasks of a backfill: Spark, or threads in tests of the copier."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from jsplan.backfill.rows.comparison import Comparison
    from jsplan.backfill.tasks.archive_writer import ExportChunk
    from jsplan.backfill.tasks.partitioning import PartitionPlan

Task = Callable[[], Iterator[dict[str, Any]]]


class TaskRunner(Protocol):
    """Runs tasks, and returns the JSON values that they yield.

    The methods raise RefusedError for a permanent error, DeadlinePassedError, and ApiError for one
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

    async def compare(self, comparison: Comparison, listed: int, name: str) -> list[dict[str, Any]]:
        """Compare both sides; of each kind of difference at most `listed` ones are listed."""

    async def close(self) -> None:
        """Cancel running tasks, and stop what was started; never raises."""
