"""Ending background tasks for certain."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

#: Seconds after which a task that is still there is cancelled again.
RECANCEL_INTERVAL: Final = 0.5


async def cancel_and_wait(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, whatever they end with.

    Before Python 3.12 `asyncio.wait_for`, which libraries use, may swallow a cancellation that comes as it is done: one is not enough.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=RECANCEL_INTERVAL)
    await asyncio.gather(*tasks, return_exceptions=True)
