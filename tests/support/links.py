"""An open connection of jsplan's own to an embedded server, for tests of single rooms."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from jsplan.config.model import Connection
from jsplan.jetstream.contexts import resolve
from jsplan.jetstream.link import Link
from jsplan.units import SECOND

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from jsplan.sandbox import Server


@asynccontextmanager
async def linked(server: Server, *, timeout: float = 5.0, **settings: Any) -> AsyncIterator[Link]:
    """A connection to the server, closed afterwards; `timeout` is seconds."""
    link = Link(resolve(Connection("main", url=server.url, timeout=int(timeout * SECOND), **settings), {}))
    await link.open()
    try:
        yield link
    finally:
        await link.close()
