"""Where the tasks of a backfill run: on Spark once there is something to copy, before that in a thread of this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jsplan.workflows.options import Observer

Task = Callable[[], Iterator[dict[str, Any]]]


class Engine:
    """One Spark session per command, started when it is first needed; it costs some seconds."""

    def __init__(self, observer: Observer, master: str | None, settings: dict[str, str] | None = None) -> None:
        self._observer = observer
        self._master = master
        self._settings = settings or {}
        self._session: Any = None  # a SparkSession; its type would be an import that only a job needs

    async def session(self) -> Any:
        """The session. Raises NotAvailableError without Java or PySpark."""
        if self._session is None:
            self._observer.phase("Starting Spark")
            self._session = await asyncio.to_thread(self._start)
        return self._session

    def _start(self) -> Any:
        from jsplan.backfill.spark.session import start  # noqa: PLC0415 - PySpark is imported when it is needed

        return start("jsplan backfill", master=self._master, cache=cache_folder(), settings=self._settings)

    async def run(self, tasks: Sequence[Task], name: str) -> list[list[dict[str, Any]]]:
        """Carry out tasks on Spark. Raises what `backfill.spark.tasks.run` raises."""
        session = await self.session()
        from jsplan.backfill.spark.tasks import run  # noqa: PLC0415

        return await asyncio.to_thread(run, session, tasks, name)

    async def near(self, task: Task, name: str) -> list[dict[str, Any]]:
        """One task on Spark if that runs anyway, else in a thread here: looking does not start Spark."""
        if self._session is not None:
            return (await self.run([task], name))[0]
        return await asyncio.to_thread(lambda: list(task()))

    async def close(self) -> None:
        """Stop Spark, if it runs; never raises."""
        if self._session is not None:
            await asyncio.to_thread(self._session.stop)
            self._session = None


def cache_folder() -> Path:
    """Where the launcher of a Java from a wheel is kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jsplan"
