"""A connection that only listens, for days: it comes back by itself, says when it may have missed something, and cannot send.

What the messages mean is left to `drift.advisories`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import Target
from jsplan.jetstream.link import Link
from jsplan.jetstream.seal import Seal

#: Messages and bytes that may wait to be read, per subject; what comes beyond is dropped, and that is said.
WAITING: Final = (65_536, 64 * 1024 * 1024)
#: Seconds between two tries to connect, at first and at most.
RETRY: Final = (0.25, 10.0)
#: Seconds between two pings, and how many may be unanswered: a half-dead link is noticed within half a minute.
PING: Final = (10, 2)


class Listener(Link):
    """Hears `subjects` and hands each message's subject and payload to `heard`.

    `gap(reason)` is called whenever something may have been missed: when it begins to listen, again and again, and when it was
    too slow. `deaf(reason)` is called when the server does not permit a subject, and without a reason when it is asked anew. Its seal
    admits nothing, so it sends nothing.
    """

    def __init__(
        self, target: Target, subjects: Sequence[str], *,
        heard: Callable[[str, bytes], None], gap: Callable[[str], None], deaf: Callable[[str], None],
    ) -> None:  # fmt: skip
        super().__init__(target, Seal())
        self._subjects = subjects
        self._heard, self._gap, self._deaf = heard, gap, deaf
        self._over = asyncio.Event()

    @property
    def listening(self) -> bool:
        """Whether the connection is there just now."""
        return bool(self._client.is_connected)

    def _options(self) -> dict[str, Any]:
        return super()._options() | {
            "name": "jsplan drift watch", "reconnect_time_wait": RETRY[0], "ping_interval": PING[0],
            "max_outstanding_pings": PING[1], "reconnected_cb": self._is_back, "closed_cb": self._is_over,
        }  # fmt: skip

    async def open(self) -> None:
        """Connect, and from then on come back by itself as often as it takes. Raises ConnectError for the first time only."""
        await super().open()
        self._client.options["max_reconnect_attempts"] = -1

    async def _is_back(self) -> None:
        self._deaf("")
        self._gap("connected again")

    async def _is_over(self) -> None:
        self._over.set()

    async def _on_error(self, error: Exception) -> None:
        await super()._on_error(error)
        if isinstance(error, nats.errors.SlowConsumerError):
            self._gap("more came than could be read")
        elif "permissions violation for subscription" in str(error).lower():
            self._deaf(str(error))

    async def _take(self, message: Msg) -> None:
        self._heard(message.subject, message.data)

    async def listen(self) -> None:
        """Connect and listen until the connection is lost for good. Raises ConnectError where there is none."""
        await self.open()
        messages, size = WAITING
        try:
            for subject in self._subjects:
                await self._client.subscribe(subject, cb=self._take, pending_msgs_limit=messages, pending_bytes_limit=size)
            await self._client.flush(max(1, int(self.target.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise ConnectError(f"connection {self.target.key} was lost: {error}", away=True) from None
        self._gap("connected")
        await self._over.wait()


async def listen_for_ever(make: Callable[[], Listener], told: Callable[[Listener | None, str], None]) -> None:
    """Listen until cancelled. `told` hears of each connection that is made, and of why one could not be made."""
    pause = RETRY[0]
    while True:
        listener = make()
        told(listener, "")
        try:
            await listener.listen()
            pause = RETRY[0]
            told(None, "the connection was lost")
        except ConnectError as error:
            told(None, str(error))
        finally:
            with contextlib.suppress(Exception):
                await listener.close()
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY[1])
