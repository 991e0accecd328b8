"""Runs work that may hang in a daemon thread, so that the job can end without it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """One thread at a time for one purpose. If it hangs, only its own purpose waits."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """Run the work and return its result. Raises its error, or TimeoutError after `seconds`.

        Work that times out continues. Other work waits for its end, within its own time.
        """
        async with asyncio.timeout(seconds):
            while self._running is not None and not self._running.done():
                await asyncio.wait({self._running})
            self._running = running = asyncio.get_running_loop().create_future()
            running.add_done_callback(_consume_error)
            threading.Thread(
                target=_run_work, args=(work, running), name=self._name, daemon=True
            ).start()
            result: Result = await asyncio.shield(running)
            return result


def _run_work(work: Callable[[], Any], running: asyncio.Future[Any]) -> None:
    result, failure = None, None
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 - it is raised in `run`
        failure = error

    def finish() -> None:
        if failure is None:
            running.set_result(result)
        else:
            running.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the job has ended meanwhile
        running.get_loop().call_soon_threadsafe(finish)


def _consume_error(running: asyncio.Future[Any]) -> None:
    """Retrieve the error of abandoned work, about which asyncio would log."""
    if not running.cancelled():
        running.exception()
