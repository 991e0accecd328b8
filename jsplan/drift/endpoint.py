"""`/metrics`, `/healthz` and `/readyz` over HTTP, answered by the loop that does the work: one that hangs does not answer.

As little HTTP as Prometheus and Kubernetes need: GET and HEAD, one request per connection, everything bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from jsplan.drift.tasks import end
from jsplan.errors import JsplanError

#: Seconds and bytes that a request may take, and requests at once.
PATIENCE: Final = 5.0
LONGEST: Final = 16 * 1024
AT_ONCE: Final = 32

#: What a path answers: status, content type, body.
Answer = tuple[HTTPStatus, str, bytes]
Routes = dict[str, Callable[[], Answer]]


def place_of(text: str) -> tuple[str | None, int]:
    """`:9464`, `127.0.0.1:9464` or `[::1]:9464` as host (None: all) and port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not HOST:PORT or :PORT')
    return host.strip("[]") or None, int(port)


def plain(status: HTTPStatus, text: str) -> Answer:
    """A short answer for people."""
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


@contextlib.asynccontextmanager
async def serving(place: str, routes: Routes) -> AsyncIterator[int]:
    """Serve as long as the context lasts; gives the port. Raises JsplanError when the address cannot be had."""
    host, port = place_of(place)
    slots = asyncio.Semaphore(AT_ONCE)
    tasks: set[asyncio.Task[None]] = set()

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            async with slots, asyncio.timeout(PATIENCE):
                writer.write(_answer(await reader.readuntil(b"\r\n\r\n"), routes))
                await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # whoever asked like that gets no answer
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    try:
        server = await asyncio.start_server(one, host, port, limit=LONGEST)
    except OSError as error:
        raise JsplanError(f"cannot serve metrics and health at {place}: {error.strerror}", hint="Give another --metrics.") from None
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        server.close()
        await end(set(tasks))


def _answer(request: bytes, routes: Routes) -> bytes:
    words = request.split(b"\r\n", 1)[0].decode("latin-1").split()
    method, path = (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
    if method not in ("GET", "HEAD"):
        status, kind, body = plain(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    elif path not in routes:
        status, kind, body = plain(HTTPStatus.NOT_FOUND, f"There are {', '.join(sorted(routes))}.")
    else:
        status, kind, body = routes[path]()
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)
