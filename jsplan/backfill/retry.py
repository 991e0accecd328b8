"""Retries of requests and copies after transient errors."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from jsplan.documents.apply import MessagesMoved
from jsplan.errors import ApiError, ConnectError, JsplanError, NotPermittedError, ServerRefusedError
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.planning.backfill.model import DeadlinePassedError

Item = TypeVar("Item")
Result = TypeVar("Result")

#: The time to wait for a server that does not answer, and between two requests, in seconds.
RETRY_TIMEOUT: Final = 120.0
POLL_INTERVAL: Final = 0.5
#: Attempts of a copy without progress.
MAX_FRUITLESS_ATTEMPTS: Final = 5
#: The error code of a server that starts or has no leader:
#: `JetStream system temporarily unavailable`.
UNAVAILABLE: Final = 503
#: Concurrent requests.
MAX_CONCURRENT: Final = 16


def is_transient(error: JsplanError) -> bool:
    """Check whether a retry may succeed: refused requests and wrong settings are permanent."""
    if isinstance(error, NotPermittedError | DeadlinePassedError):
        return False
    if isinstance(error, ServerRefusedError):
        return error.code == UNAVAILABLE
    return error.is_offline if isinstance(error, ConnectError) else True


async def retry_transient(
    api: DomainApi, ask: Callable[[], Awaitable[Result]], patience: float = RETRY_TIMEOUT
) -> Result:
    """Send a request until the domain answers, and reconnect after a restart of the server.

    Raises a permanent error of `ask`, and any error after `patience` seconds.
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
    """Call `ask` for each item with limited concurrency; results are in the order of the items."""
    free = asyncio.Semaphore(MAX_CONCURRENT)

    async def call(item: Item) -> Result:
        async with free:
            return await ask(item)

    return await asyncio.gather(*(call(item) for item in items))


async def retry_while_progressing(
    attempt: Callable[[], Awaitable[None]],
    copied: Callable[[], int],
    observer: Observer,
    title: str,
) -> None:
    """Retry a copy after transient errors while it makes progress; `copied` measures that.

    Raises a permanent error, and any error after `MAX_FRUITLESS_ATTEMPTS` without progress.
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


async def watch_progress(
    job: Awaitable[Result],
    observer: Observer,
    names: tuple[str, str],
    count: Callable[[], Awaitable[int]],
    total: int,
) -> Result:
    """Await a job, and report its progress from time to time. Raises the errors of the job.

    `names` are what is copied, and what is done with it; `count` counts what is done of `total`.
    """
    task, started = asyncio.ensure_future(job), time.monotonic()
    while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
        with contextlib.suppress(ApiError):  # the job reports the error
            done = await count()
            observer.event(MessagesMoved(*names, done, total, time.monotonic() - started))
    return task.result()
