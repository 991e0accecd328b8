"""Publishes on one subject and nowhere else, each message known to have reached the server. What is said is left to `drift.sinks`."""

from __future__ import annotations

import asyncio
from typing import Any

import nats.errors

from jsplan.errors import ApiError
from jsplan.jetstream.contexts import Target
from jsplan.jetstream.link import Link


class Speaker:
    """One subject of one account. The connection is made when it is needed, and again when it was lost."""

    def __init__(self, target: Target, subject: str) -> None:
        self._target = target
        self._subject = subject
        self._link: _Sayer | None = None

    async def say(self, payloads: list[tuple[str, bytes]]) -> None:
        """Publish messages, each with its id as `Nats-Msg-Id`, and wait until the server has them. Raises ApiError and ConnectError."""
        if self._link is None or self._link.is_closed:
            link = _Sayer(self._target)
            await link.open()
            self._link = link
        try:
            await self._link.say(self._subject, payloads)
        except ApiError:
            await self.close()
            raise

    async def close(self) -> None:
        """Hang up; never raises."""
        if self._link is not None:
            await self._link.close()
        self._link = None


class _Sayer(Link):
    """Never connects again by itself: what waited in a buffer meanwhile would pass for said."""

    def _options(self) -> dict[str, Any]:
        return super()._options() | {"allow_reconnect": False}

    async def say(self, subject: str, payloads: list[tuple[str, bytes]]) -> None:
        self._denied.clear()
        client = self._client
        try:
            async with asyncio.timeout(2 * self.target.timeout):
                for name, payload in payloads:
                    await client.publish(subject, payload, headers={"Nats-Msg-Id": name})
                # A flush sends its PING at once, ahead of what is published: that has to be on its way first.
                await client._flush_pending(force_flush=True)  # noqa: SLF001 - there is no public name for it
                await client.flush(max(1, int(self.target.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise ApiError(f"the connection to {self.target.shown} was lost: {str(error) or type(error).__name__}") from None
        if not client.is_connected:
            raise ApiError(f"the connection to {self.target.shown} was lost")
        if self._denied:
            raise ApiError(f"{self.target.shown} does not permit this user to publish to {subject}")
