"""Each sink gets every notice at least once, in order, whatever fails meanwhile; none of them holds up the job or another sink."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from jsplan.documents.notice import Notice
from jsplan.drift.sinks.sink import Sink, SinkError

#: Notices that wait for one sink at most.
WAITING: Final = 10_000
#: Seconds between two tries: at first, and at most.
RETRY: Final = (0.5, 30.0)
#: Seconds that a sink may take for what it is given at once.
LONGEST: Final = 60.0


class Delivery:
    """The queue of one sink. `told(delivery, error)` hears of each failure, and with None of each success.

    The queue is bounded: beyond `WAITING` the oldest goes that the situation's later notices have overtaken, else the oldest at all.
    """

    def __init__(self, sink: Sink, told: Callable[[Delivery, str | None], None]) -> None:
        self.sink = sink
        self.delivered = self.dropped = self.failures = 0
        self._told = told
        self._waiting: deque[Notice] = deque()
        self._more = asyncio.Event()
        self._hurry = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def waiting(self) -> int:
        """Notices that the sink does not have yet."""
        return len(self._waiting)

    def put(self, notices: Iterable[Notice]) -> None:
        """Queue them; never waits."""
        for notice in notices:
            self.idle.clear()
            self._waiting.append(notice)
            if len(self._waiting) > WAITING:
                self._drop()
        self._more.set()

    def _drop(self) -> None:
        later = {notice.situation.id for notice in list(self._waiting)[len(self._waiting) // 2 :]}
        index = next((i for i, notice in enumerate(self._waiting) if i < len(self._waiting) // 2 and notice.situation.id in later), 0)
        del self._waiting[index]
        self.dropped += 1

    async def run(self) -> None:
        """Deliver until cancelled."""
        pause = RETRY[0]
        while True:
            if not self._waiting:
                self.idle.set()
                self._more.clear()
                await self._more.wait()
                continue
            if await self._deliver():
                pause = RETRY[0]
                continue
            if self._hurry.is_set():
                await asyncio.sleep(RETRY[0])
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._hurry.wait()
            pause = min(2 * pause, RETRY[1])

    async def _deliver(self) -> bool:
        batch = [self._waiting[i] for i in range(min(self.sink.batch, len(self._waiting)))]
        try:
            async with asyncio.timeout(LONGEST):
                await self.sink.send(batch)
        except (SinkError, TimeoutError) as error:
            self.failures += 1
            self._told(self, str(error) or f"{self.sink.name} took longer than {LONGEST:.0f} s")
            return False
        for notice in batch:  # what was dropped meanwhile is not there to be taken
            with contextlib.suppress(ValueError):
                self._waiting.remove(notice)
        self.delivered += len(batch)
        self._told(self, None)
        return True

    def hurry(self) -> None:
        """From now on retry without long pauses: the job is about to end."""
        self._hurry.set()


async def deliver_all(deliveries: Iterable[Delivery], seconds: float) -> None:
    """Wait until every sink has everything, but no longer than that."""
    listed = list(deliveries)
    for delivery in listed:
        delivery.hurry()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for delivery in listed:
                await delivery.idle.wait()
