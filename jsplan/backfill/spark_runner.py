"""Runs the tasks of a backfill: on Spark for a copy, in a thread before that."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from jsplan.backfill.spark_extra import require_spark
from jsplan.errors import NotAvailableError
from jsplan.options import Observer

if TYPE_CHECKING:
    from jsplan.backfill.compare_rows import StreamPair
    from jsplan.backfill.rows import Comparison
    from jsplan.backfill.tasks.partitioning import PartitionPlan
    from jsplan.facts.compare_streams import Comparison as StreamComparison

Result = TypeVar("Result")
Task = Callable[[], Iterator[Any]]


class SparkRunner:
    """One Spark session per command, started at its first use; that takes some seconds.

    It runs tasks and returns what they yield. Its methods raise RefusedError for a
    permanent error, DeadlinePassedError, and ApiError for one that another attempt may avoid.
    `start_seconds` is the time that a caller waited for the start. The log of Spark goes to a file,
    which is kept and named if a worker dies.
    """

    def __init__(
        self, observer: Observer, master: str | None, settings: dict[str, str] | None = None
    ) -> None:
        self._observer = observer
        self._master = master
        self._settings = settings or {}
        self._session: Any = None  # a SparkSession, not typed: PySpark is imported later
        self._starting: asyncio.Future[Any] | None = None
        self._owns_session = self._closed = self._keep_log = False
        self.log_path: Path | None = None
        self.start_seconds = 0.0

    def warm_up(self) -> None:
        """Begin to start Spark, while the caller still asks the servers."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(asyncio.to_thread(self._start))

    async def start(self) -> None:
        """Start Spark, if it has not started. Raises NotAvailableError."""
        await self.session()

    async def session(self) -> Any:
        """Return the session. Raises NotAvailableError if Spark cannot start."""
        if self._session is None:
            self._observer.phase("Starting Spark")
            started = time.monotonic()
            self.warm_up()
            assert self._starting is not None
            self._session = await asyncio.shield(self._starting)
            self.start_seconds = time.monotonic() - started
        from jsplan.backfill.spark.session import share_settings  # noqa: PLC0415

        share_settings(self._session)
        return self._session

    def _start(self) -> Any:
        require_spark()
        from jsplan.backfill.spark.session import (  # noqa: PLC0415 - imports PySpark
            find_running_session,
            start_session,
        )

        running = find_running_session()
        if running is not None:
            return running
        self._owns_session, self.log_path = True, prepare_log_file()
        try:
            return start_session(
                "jsplan backfill",
                master=self._master,
                cache=cache_folder(),
                settings=self._settings,
                log=self.log_path,
            )
        except NotAvailableError:
            self._keep_log = self.log_path.is_file()
            raise

    async def run(self, tasks: Sequence[Task], name: str) -> list[list[Any]]:
        """Run tasks on Spark. Raises the errors of `backfill.spark.executors.run_tasks`."""
        from jsplan.backfill.spark.executors import run_tasks  # noqa: PLC0415

        return await self._call(run_tasks, tasks, name)

    async def count_slots(self) -> int:
        """Return the number of tasks that run at the same time."""
        return int((await self.session()).sparkContext.defaultParallelism)

    async def run_partitions(self, plan: PartitionPlan, name: str) -> list[Any]:
        """Copy in partitions or chunks on Spark. Raises as `backfill.spark.pipeline.run_plan`."""
        from jsplan.backfill.spark.pipeline import run_plan  # noqa: PLC0415

        return await self._call(run_plan, plan, name)

    async def compare(self, comparison: Comparison, listed: int, name: str) -> list[dict[str, Any]]:
        """Compare both sides with Spark. Raises the errors of `verify_join.compare_sides`."""
        from jsplan.backfill.spark.verify_join import compare_sides  # noqa: PLC0415

        return await self._call(compare_sides, comparison, listed, name)

    async def compare_streams(self, pair: StreamPair) -> StreamComparison:
        """Compare two streams on Spark. Raises the errors of `spark.compare.compare_streams`."""
        from jsplan.backfill.spark.compare import compare_streams  # noqa: PLC0415

        return await self._call(compare_streams, pair)

    async def _call(self, function: Callable[..., Result], *given: Any) -> Result:
        session = await self.session()
        return await self.call_in_thread(lambda: function(session, *given))

    async def call_in_thread(self, function: Callable[[], Result]) -> Result:
        """Call a function in a thread. Raises its errors, or CancelledError after `close`."""
        from jsplan.backfill.spark.executors import WorkerDiedError  # noqa: PLC0415

        try:
            return await asyncio.to_thread(function)
        except Exception as error:
            if self._closed:
                raise asyncio.CancelledError from None  # any error of a stopped Spark
            if isinstance(error, WorkerDiedError) and self.log_path is not None:
                self._keep_log = True
                error.hint = f"{error.hint} The log of Spark: {self.log_path}"
            raise

    async def run_one(self, task: Task, name: str) -> list[Any]:
        """Run one task on Spark if it has started, else in a thread."""
        if self._session is not None:
            return (await self.run([task], name))[0]
        return await asyncio.to_thread(lambda: list(task()))

    async def close(self) -> None:
        """Cancel running tasks, and stop Spark if this process started it; never raises."""
        self._closed = True
        task = asyncio.current_task()
        if self._starting is not None and task is not None and task.cancelling():
            self._observer.phase("Interrupted, stopping Spark")
        with contextlib.suppress(Exception):
            self._session = await self._starting if self._starting is not None else None
        if self._session is not None and self._owns_session:
            await asyncio.to_thread(self._stop)
        self._session = None
        if self.log_path is not None and not self._keep_log:
            self.log_path.unlink(missing_ok=True)

    def _stop(self) -> None:
        with contextlib.suppress(Exception):
            self._session.sparkContext.cancelAllJobs()
            self._session.stop()


def prepare_log_file() -> Path:
    """Return the log file of this process, and delete logs older than a week."""
    folder = cache_folder() / "spark"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > 7 * 86_400:
                old.unlink()
    return folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log"


def cache_folder() -> Path:
    """Return the folder for logs and for the launcher of a Java from a wheel."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jsplan"
