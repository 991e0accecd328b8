"""Where the tasks of a backfill run: on Spark once there is something to copy, before that in a thread of this process."""

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
    from jsplan.backfill.parquet.writer import ExportChunk
    from jsplan.backfill.tasks.partitioning import PartitionPlan

Task = Callable[[], Iterator[dict[str, Any]]]
Result = TypeVar("Result")


class SparkRunner:
    """One Spark session per command, started when it is first needed; it costs some seconds.

    What Spark says goes to a file, which is named when a worker dies and removed otherwise.
    """

    def __init__(
        self, observer: Observer, master: str | None, settings: dict[str, str] | None = None
    ) -> None:
        self._observer = observer
        self._master = master
        self._settings = settings or {}
        self._session: Any = (
            None  # a SparkSession; its type would be an import that only a job needs
        )
        self._starting: asyncio.Future[Any] | None = None
        self._owns_session = self._closed = self._keep_log = False
        self.log_path: Path | None = None
        self.start_seconds = 0.0

    async def session(self) -> Any:
        """The session. Raises NotAvailableError without Java or PySpark, and where Spark does not start."""
        if self._session is None:
            self._observer.phase("Starting Spark")
            began = time.monotonic()
            self._starting = asyncio.ensure_future(asyncio.to_thread(self._start))
            self._session = await asyncio.shield(self._starting)
            self.start_seconds = time.monotonic() - began
        return self._session

    def _start(self) -> Any:
        require_spark()
        from jsplan.backfill.spark.session import find_running_session, start_session  # noqa: PLC0415 - PySpark is imported when it is needed

        found = find_running_session()
        if found is not None:
            return found
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

    async def run(self, tasks: Sequence[Task], name: str) -> list[list[dict[str, Any]]]:
        """Carry out tasks on Spark. Raises what `backfill.spark.tasks.run_tasks` raises."""
        session = await self.session()
        from jsplan.backfill.spark.executors import run_tasks  # noqa: PLC0415

        return await self.call_in_thread(lambda: run_tasks(session, tasks, name))

    async def count_slots(self) -> int:
        """How many tasks run at the same time."""
        return int((await self.session()).sparkContext.defaultParallelism)

    async def run_partitions(self, job: PartitionPlan, name: str) -> list[dict[str, Any]]:
        """Carry out a copy in lanes on Spark. Raises what `backfill.spark.shaping.run_tasks` raises."""
        session = await self.session()
        from jsplan.backfill.spark.pipeline import run_plan  # noqa: PLC0415

        return await self.call_in_thread(lambda: run_plan(session, job, name))

    async def run_export(
        self, job: PartitionPlan, pieces: Sequence[ExportChunk], name: str
    ) -> list[dict[str, Any]]:
        """Write pieces of an archive, of what SQL and a function make of messages. Raises what `spark.shaping.run_export` raises."""
        session = await self.session()
        from jsplan.backfill.spark.pipeline import run_export  # noqa: PLC0415

        return await self.call_in_thread(lambda: run_export(session, job, pieces, name))

    async def call_in_thread(self, work: Callable[[], Result]) -> Result:
        """Do something that waits for Spark in a thread. Raises what `work` raises; once Spark is stopped it counts as cancelled."""
        from jsplan.backfill.spark.executors import WorkerDiedError  # noqa: PLC0415

        try:
            return await asyncio.to_thread(work)
        except Exception as error:
            if self._closed:
                raise asyncio.CancelledError from None  # whatever Spark says when it is stopped under a call
            if isinstance(error, WorkerDiedError) and self.log_path is not None:
                self._keep_log = True
                error.hint = f"{error.hint} What Spark says about it: {self.log_path}"
            raise

    async def run_one(self, task: Task, name: str) -> list[dict[str, Any]]:
        """One task on Spark if that runs anyway, else in a thread here: looking does not start Spark."""
        if self._session is not None:
            return (await self.run([task], name))[0]
        return await asyncio.to_thread(lambda: list(task()))

    async def close(self) -> None:
        """Cancel what runs and stop Spark, if we started it; never raises."""
        self._closed = True
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
    """A file of this process for what Spark says; what is older than a week goes."""
    folder = cache_folder() / "spark"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for old in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > 7 * 86_400:
                old.unlink()
    return folder / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log"


def cache_folder() -> Path:
    """Where the launcher of a Java from a wheel is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jsplan"
