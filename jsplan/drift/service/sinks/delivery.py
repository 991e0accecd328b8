"""Delivery at least once and in order to each sink, independent of the other sinks."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

from jsplan.documents.alert import AlertEvent
from jsplan.errors import JsplanError


class SinkError(JsplanError):
    """A sink did not accept a batch; it is retried. The message has no URL, header or password."""


class Sink(Protocol):
    """One destination of notifications."""

    @property
    def name(self) -> str:
        """The name for logs and metrics, without secrets."""

    @property
    def batch(self) -> int:
        """The number of notifications in one batch."""

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Deliver them, and return when they arrived. On SinkError some may have arrived."""

    async def close(self) -> None:
        """Release resources; never raises."""


# --- the queue of one sink ------------------------------------------------------------------------

#: Notifications that wait for one sink at most.
MAX_QUEUED: Final = 10_000
#: Seconds between two attempts: first and maximum.
RETRY_INTERVALS: Final = (0.5, 30.0)
#: Seconds for one batch.
SEND_TIMEOUT: Final = 60.0


class Delivery:
    """The queue of one sink. `on_result(delivery, error)` is called with None for success.

    Beyond `MAX_QUEUED` it drops the oldest notification that a later one of the same alert
    replaces, or else the oldest.
    """

    def __init__(self, sink: Sink, on_result: Callable[[Delivery, str | None], None]) -> None:
        self.sink = sink
        self.delivered = self.dropped = self.failures = 0
        self._on_result = on_result
        self._queue: deque[AlertEvent] = deque()
        self._has_queued = asyncio.Event()
        self._quick_retry = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def queued(self) -> int:
        """Notifications that the sink does not have yet."""
        return len(self._queue)

    def put(self, notifications: Iterable[AlertEvent]) -> None:
        """Queue them; never waits."""
        for event in notifications:
            self.idle.clear()
            self._queue.append(event)
            if len(self._queue) > MAX_QUEUED:
                self._drop_oldest()
        self._has_queued.set()

    def _drop_oldest(self) -> None:
        later = {event.alert.id for event in list(self._queue)[len(self._queue) // 2 :]}
        index = next(
            (
                i
                for i, event in enumerate(self._queue)
                if i < len(self._queue) // 2 and event.alert.id in later
            ),
            0,
        )
        del self._queue[index]
        self.dropped += 1

    async def run(self) -> None:
        """Deliver until cancelled."""
        pause = RETRY_INTERVALS[0]
        while True:
            if not self._queue:
                self.idle.set()
                self._has_queued.clear()
                await self._has_queued.wait()
                continue
            if await self._deliver_batch():
                pause = RETRY_INTERVALS[0]
                continue
            if self._quick_retry.is_set():
                await asyncio.sleep(RETRY_INTERVALS[0])
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._quick_retry.wait()
            pause = min(2 * pause, RETRY_INTERVALS[1])

    async def _deliver_batch(self) -> bool:
        batch = [self._queue[i] for i in range(min(self.sink.batch, len(self._queue)))]
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self.sink.send(batch)
        except (SinkError, TimeoutError) as error:
            self.failures += 1
            self._on_result(
                self, str(error) or f"{self.sink.name} took longer than {SEND_TIMEOUT:.0f} s"
            )
            return False
        for event in batch:  # some may have been dropped meanwhile
            with contextlib.suppress(ValueError):
                self._queue.remove(event)
        self.delivered += len(batch)
        self._on_result(self, None)
        return True

    def retry_quickly(self) -> None:
        """Retry without long pauses from now on: the job is about to end."""
        self._quick_retry.set()


async def deliver_all(deliveries: Iterable[Delivery], seconds: float) -> None:
    """Wait until every sink has everything, for at most `seconds`."""
    listed = list(deliveries)
    for delivery in listed:
        delivery.retry_quickly()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for delivery in listed:
                await delivery.idle.wait()
