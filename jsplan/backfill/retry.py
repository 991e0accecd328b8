"""Asks servers until they answer, and tells trouble that passes from trouble that stays."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from jsplan.backfill.windows import WindowClosedError
from jsplan.errors import ApiError, ConnectError, JsplanError, NotPermittedError, ServerRefusedError
from jsplan.jetstream import DomainApi
from jsplan.options import Observer

Item = TypeVar("Item")
Result = TypeVar("Result")

#: How long an end that does not answer is waited for, and the time between two looks. Seconds.
RETRY_TIMEOUT: Final = 120.0
POLL_INTERVAL: Final = 0.5
#: How often a copy that makes no progress is begun again.
MAX_FRUITLESS_ATTEMPTS: Final = 5
#: The code of an answer that a server gives while it starts, or has no leader: `JetStream system temporarily unavailable`.
UNAVAILABLE: Final = 503
#: So many servers are asked at the same time.
MAX_CONCURRENT: Final = 16


def is_transient(error: JsplanError) -> bool:
    """Whether another attempt may not meet it: what a server refused for good and settings that are wrong do not pass."""
    if isinstance(error, NotPermittedError | WindowClosedError):
        return False
    if isinstance(error, ServerRefusedError):
        return error.code == UNAVAILABLE
    return error.is_offline if isinstance(error, ConnectError) else True


async def retry_transient(
    api: DomainApi, ask: Callable[[], Awaitable[Result]], patience: float = RETRY_TIMEOUT
) -> Result:
    """Ask a domain until there is an answer: a server that is restarted comes back, and then it is connected to again.

    Raises what `ask` raises when that does not pass, or has not for `patience` seconds.
    """
    end = time.monotonic() + patience
    while True:
        try:
            if api.connection.is_closed:
                await api.connection.reopen()
            return await ask()
        except (ApiError, ConnectError) as error:
            if not is_transient(error) or time.monotonic() > end:
                raise
        await asyncio.sleep(POLL_INTERVAL)


async def gather_limited(
    items: Iterable[Item], ask: Callable[[Item], Awaitable[Result]]
) -> list[Result]:
    """Ask about each, a few at the same time; the answers in the order of the items."""
    free = asyncio.Semaphore(MAX_CONCURRENT)

    async def one(item: Item) -> Result:
        async with free:
            return await ask(item)

    return await asyncio.gather(*(one(item) for item in items))


async def retry_while_progressing(
    attempt: Callable[[], Awaitable[None]],
    copied: Callable[[], int],
    observer: Observer,
    title: str,
) -> None:
    """Begin a copy again after trouble that passes, as long as it makes progress: `copied` says how far it is.

    Raises what `attempt` raises when that does not pass, or after `MAX_FRUITLESS_ATTEMPTS` without any progress.
    """
    fruitless = 0
    while True:
        before = copied()
        try:
            return await attempt()
        except (ApiError, ConnectError) as error:
            fruitless = fruitless + 1 if copied() == before else 1
            if fruitless == MAX_FRUITLESS_ATTEMPTS or not is_transient(error):
                raise
            observer.warn(f"{title}: {error.full_text.rstrip('.')}. Trying again.")
