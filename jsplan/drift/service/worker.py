"""Tasks and threads that may hang, ended or left so that the job can end."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Collection
from typing import Any, Final, TypeVar

#: Seconds after which a running task is cancelled again.
RECANCEL_INTERVAL: Final = 0.5


async def cancel_and_wait(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, with any result.

    Before Python 3.12 `asyncio.wait_for`, which libraries use, may swallow a cancellation. So each
    task is cancelled until it ends.
    """
    running = {task for task in tasks if not task.done()}
    while running:
        for task in running:
            task.cancel()
        _, running = await asyncio.wait(running, timeout=RECANCEL_INTERVAL)
    await asyncio.gather(*tasks, return_exceptions=True)


# --- a thread for work that may hang --------------------------------------------------------------

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
