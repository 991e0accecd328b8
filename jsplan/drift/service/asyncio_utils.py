"""Reliable cancellation of background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any, Final

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
