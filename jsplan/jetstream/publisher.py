"""Publishes on one subject, and confirms that each message reached the server."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors

from jsplan.errors import ApiError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings


class Publisher:
    """One subject of one account. Connects on demand, and again when the connection was lost."""

    def __init__(self, target: ConnectionSettings, subject: str) -> None:
        self._settings = target
        self._subject = subject
        self._connection: _PublishConnection | None = None

    async def publish(self, payloads: list[tuple[str, bytes]]) -> None:
        """Publish `(Nats-Msg-Id, payload)` pairs and wait until the server has them.

        Raises ApiError and ConnectError.
        """
        if self._connection is None or self._connection.is_closed:
            connection = _PublishConnection(self._settings)
            await connection.open()
            self._connection = connection
        try:
            await self._connection.publish_all(self._subject, payloads)
        except ApiError:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the connection; never raises."""
        if self._connection is not None:
            await self._connection.close()
        self._connection = None


class _PublishConnection(NatsConnection):
    """A connection without reconnects: buffered messages would count as sent meanwhile."""

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"allow_reconnect": False}

    async def publish_all(self, subject: str, payloads: list[tuple[str, bytes]]) -> None:
        self._server_errors.clear()
        client = self._client
        try:
            async with asyncio.timeout(2 * self.settings.timeout):
                for name, payload in payloads:
                    await client.publish(subject, payload, headers={"Nats-Msg-Id": name})
                await client.flush(max(1, int(self.settings.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise ApiError(
                f"the connection to {self.settings.shown} was lost:"
                f" {str(error) or type(error).__name__}"
            ) from None
        if not client.is_connected:
            raise ApiError(f"the connection to {self.settings.shown} was lost")
        if self._server_errors:
            raise ApiError(
                f"{self.settings.shown} does not permit this user to publish to {subject}"
            )
