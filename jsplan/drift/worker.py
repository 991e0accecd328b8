"""Work that may hang, in a thread of its own: nothing else waits for it, and the job can end without it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class Worker:
    """One thread at a time for one purpose. A thread that hangs holds up its own purpose alone, and is no reason to stay."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def run(self, work: Callable[[], Result], seconds: float) -> Result:
        """Do the work and return its result. Raises what it raises, and TimeoutError when it takes longer.

        Work that took too long goes on; until it has ended no other work begins, and waiting for that counts.
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
    except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
        failure = error

    def over() -> None:
        if failure is None:
            running.set_result(result)
        else:
            running.set_exception(failure)

    with contextlib.suppress(RuntimeError):  # the job has ended meanwhile
        running.get_loop().call_soon_threadsafe(over)


def _consume_error(running: asyncio.Future[Any]) -> None:
    """Take the error of work that nobody waits for any more: asyncio would complain about it."""
    if not running.cancelled():
        running.exception()
