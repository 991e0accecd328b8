"""An open connection of jsplan to an embedded server, for tests of single packages."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from jsplan.config.model import Connection
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import resolve_settings
from jsplan.units import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jsplan.sandbox import Server


@asynccontextmanager
async def open_link(
    server: Server, *, timeout: float = 5.0, **settings: Any
) -> AsyncIterator[NatsConnection]:
    """Open a connection to the server, and close it afterwards; `timeout` is in seconds."""
    link = NatsConnection(
        resolve_settings(
            Connection("main", url=server.url, timeout=int(timeout * SECOND), **settings), {}
        )
    )
    await link.open()
    try:
        yield link
    finally:
        await link.close()
