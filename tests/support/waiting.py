"""Waiting for a condition, never for a time."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds; the limit is for a machine that is very busy.
PATIENCE: Final = 60.0


def wait_until(
    ready: Callable[[], bool],
    what: object,
    seconds: float = PATIENCE,
    error: type[Exception] = AssertionError,
) -> None:
    """Ask again and again until it is so; raise the error after so many seconds."""
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise error(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.01)


async def await_until(ready: Callable[[], bool]) -> None:
    """Wait like `wait_until` while the loop runs."""
    async with asyncio.timeout(PATIENCE):
        while not ready():  # noqa: ASYNC110 - no event says when it becomes true
            await asyncio.sleep(0.005)
