"""A long-lived connection that only receives: it reconnects, and reports possible gaps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Final

import nats.errors
from nats.aio.msg import Msg

from jsplan.errors import ConnectError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.read_only import ReadOnlyGuard

#: Messages and bytes that may wait per subject; more is dropped, which is reported as a gap.
MAX_WAITING: Final = (65_536, 64 * 1024 * 1024)
#: Seconds between two attempts to connect: first and maximum.
RETRY_INTERVALS: Final = (0.25, 10.0)
#: Seconds between pings, and unanswered pings allowed: a dead connection shows within 30 s.
PING_SETTINGS: Final = (10, 2)


class Subscriber(NatsConnection):
    """Receives `subjects` and passes each message's subject and payload to `on_message`.

    `on_gap(reason)` is called whenever messages may have been missed: after each connect, and when
    reading was too slow. `on_denied(reason)` is called when the server does not permit a subject,
    and with an empty reason when it is asked again. Its guard allows nothing, so it sends nothing.
    """

    def __init__(
        self,
        target: ConnectionSettings,
        subjects: Sequence[str],
        *,
        on_message: Callable[[str, bytes], None],
        on_gap: Callable[[str], None],
        on_denied: Callable[[str], None],
    ) -> None:
        super().__init__(target, ReadOnlyGuard())
        self._subjects = subjects
        self._handle_message, self._on_gap, self._on_denied = on_message, on_gap, on_denied
        self._closed = asyncio.Event()

    @property
    def is_connected(self) -> bool:
        """True while the connection is up."""
        return bool(self._client.is_connected)

    def _options(self) -> dict[str, Any]:
        return super()._options() | {
            "name": "jsplan drift watch",
            "reconnect_time_wait": RETRY_INTERVALS[0],
            "ping_interval": PING_SETTINGS[0],
            "max_outstanding_pings": PING_SETTINGS[1],
            "reconnected_cb": self._on_reconnected,
            "closed_cb": self._on_closed,
        }

    async def open(self) -> None:
        """Connect, then reconnect without a limit. Raises ConnectError for the first time only."""
        await super().open()
        self._client.options["max_reconnect_attempts"] = -1

    async def _on_reconnected(self) -> None:
        self._on_denied("")
        self._on_gap("connected again")

    async def _on_closed(self) -> None:
        self._closed.set()

    async def _on_error(self, error: Exception) -> None:
        await super()._on_error(error)
        if isinstance(error, nats.errors.SlowConsumerError):
            self._on_gap("more came than could be read")
        elif "permissions violation for subscription" in str(error).lower():
            self._on_denied(str(error))

    async def _receive(self, message: Msg) -> None:
        self._handle_message(message.subject, message.data)

    async def listen(self) -> None:
        """Connect and listen until the connection is lost for good. Raises ConnectError."""
        await self.open()
        messages, size = MAX_WAITING
        try:
            for subject in self._subjects:
                await self._client.subscribe(
                    subject, cb=self._receive, pending_msgs_limit=messages, pending_bytes_limit=size
                )
            # nats-py may send the first PING before the subscriptions. After the second PONG, a
            # denial has been received.
            for _ in range(2):
                await self._client.flush(max(1, int(self.settings.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise ConnectError(
                f"connection {self.settings.key} was lost: {error}", is_offline=True
            ) from None
        self._on_gap("connected")
        await self._closed.wait()


async def listen_until_cancelled(
    make: Callable[[], Subscriber], on_change: Callable[[Subscriber | None, str], None]
) -> None:
    """Listen until cancelled; report each new connection and each failure to `on_change`."""
    pause = RETRY_INTERVALS[0]
    while True:
        listener = make()
        on_change(listener, "")
        try:
            await listener.listen()
            pause = RETRY_INTERVALS[0]
            on_change(None, "the connection was lost")
        except ConnectError as error:
            on_change(None, str(error))
        finally:
            with contextlib.suppress(Exception):
                await listener.close()
        await asyncio.sleep(pause)
        pause = min(2 * pause, RETRY_INTERVALS[1])
