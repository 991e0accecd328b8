"""Each sink gets every notice at least once, in order, whatever fails meanwhile; none of them holds up the job or another sink."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from jsplan.documents.alert import AlertEvent
from jsplan.drift.sinks.sink import Sink, SinkError

#: Notices that wait for one sink at most.
MAX_QUEUED: Final = 10_000
#: Seconds between two tries: at first, and at most.
RETRY_INTERVALS: Final = (0.5, 30.0)
#: Seconds that a sink may take for what it is given at once.
SEND_TIMEOUT: Final = 60.0


class Delivery:
    """The queue of one sink. `told(delivery, error)` hears of each failure, and with None of each success.

    The queue is bounded: beyond `MAX_QUEUED` the oldest goes that the situation's later notices have overtaken, else the oldest at all.
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
        """Notices that the sink does not have yet."""
        return len(self._queue)

    def put(self, notices: Iterable[AlertEvent]) -> None:
        """Queue them; never waits."""
        for notice in notices:
            self.idle.clear()
            self._queue.append(notice)
            if len(self._queue) > MAX_QUEUED:
                self._drop_oldest()
        self._has_queued.set()

    def _drop_oldest(self) -> None:
        later = {notice.situation.id for notice in list(self._queue)[len(self._queue) // 2 :]}
        index = next(
            (
                i
                for i, notice in enumerate(self._queue)
                if i < len(self._queue) // 2 and notice.situation.id in later
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
        for notice in batch:  # what was dropped meanwhile is not there to be taken
            with contextlib.suppress(ValueError):
                self._queue.remove(notice)
        self.delivered += len(batch)
        self._on_result(self, None)
        return True

    def retry_quickly(self) -> None:
        """From now on retry without long pauses: the job is about to end."""
        self._quick_retry.set()


async def deliver_all(deliveries: Iterable[Delivery], seconds: float) -> None:
    """Wait until every sink has everything, but no longer than that."""
    listed = list(deliveries)
    for delivery in listed:
        delivery.retry_quickly()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for delivery in listed:
                await delivery.idle.wait()
