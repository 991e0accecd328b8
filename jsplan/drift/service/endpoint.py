"""Serves `/metrics`, `/healthz` and `/readyz` over HTTP from the event loop of the job.

A loop that hangs does not answer. It supports only what Prometheus and Kubernetes need: GET and
HEAD, one request per connection, everything bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from jsplan.drift.service.worker import cancel_and_wait
from jsplan.errors import JsplanError

#: Seconds and bytes of one request, and concurrent requests.
REQUEST_TIMEOUT: float = 5.0
MAX_REQUEST_BYTES: Final = 16 * 1024
MAX_CONNECTIONS: Final = 32
#: Seconds until accepting a connection is retried.
ACCEPT_RETRY: Final = 0.05

#: The answer of a path: status, content type, body.
Answer = tuple[HTTPStatus, str, bytes]
Routes = dict[str, Callable[[], Answer]]


def parse_listen_address(text: str) -> tuple[str | None, int]:
    """Parse `:9464`, `127.0.0.1:9464` or `[::1]:9464` to host (None: all) and port.

    Raises ValueError.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not HOST:PORT or :PORT')
    return host.strip("[]") or None, int(port)


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """Return a plain text answer."""
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


@contextlib.asynccontextmanager
async def serve(listen: str, routes: Routes) -> AsyncIterator[int]:
    """Serve as long as the context lasts; yields the port. Raises JsplanError if it cannot."""
    try:
        sockets = _open_sockets(*parse_listen_address(listen))
    except OSError as error:
        raise JsplanError(
            f"cannot serve metrics and health at {listen}: {error.strerror}",
            hint="Give another --metrics.",
        ) from None
    requests: dict[asyncio.Task[None], None] = {}
    acceptors = [asyncio.create_task(_accept(each, routes, requests)) for each in sockets]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        await cancel_and_wait(acceptors)
        await cancel_and_wait(list(requests))
        for each in sockets:
            each.close()


def _open_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Open a socket for each local address of the host; None is all. Raises OSError for none."""
    found, failure = (
        list[socket.socket](),
        OSError(errno.EADDRNOTAVAIL, "there is no such address here"),
    )
    wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys(
        (family, address[:2]) for family, _, _, _, address in wanted
    ):
        # A port that the system chose is used for all addresses.
        at = found[0].getsockname()[1] if found else port
        try:
            found.append(
                socket.create_server((str(address[0]), at), family=family, backlog=MAX_CONNECTIONS)
            )
        except OSError as error:
            failure = error
            continue
        found[-1].setblocking(False)
    if not found:
        raise failure
    return found


async def _accept(
    listener: socket.socket, routes: Routes, requests: dict[asyncio.Task[None], None]
) -> None:
    """Accept connections. At the limit, cancel the oldest: it had the longest time to ask."""
    loop = asyncio.get_running_loop()
    while True:
        if len(requests) >= MAX_CONNECTIONS:
            await cancel_and_wait([next(iter(requests))])
        try:
            stream, _ = await loop.sock_accept(listener)
        except OSError:  # the client closed it, or the process has no descriptor left
            await cancel_and_wait(list(requests)[:1])
            await asyncio.sleep(ACCEPT_RETRY)
            continue
        request = asyncio.create_task(_serve_request(stream, routes))
        requests[request] = None
        request.add_done_callback(requests.pop)


async def _serve_request(stream: socket.socket, routes: Routes) -> None:
    """Answer one request, in bounded time and space. An invalid request gets no answer."""
    loop, received = asyncio.get_running_loop(), b""
    with stream, contextlib.suppress(TimeoutError, OSError):
        stream.setblocking(False)
        async with asyncio.timeout(REQUEST_TIMEOUT):
            while b"\r\n\r\n" not in received:
                more = await loop.sock_recv(stream, MAX_REQUEST_BYTES)
                if not more or len(received) + len(more) > MAX_REQUEST_BYTES:
                    return
                received += more
            await loop.sock_sendall(stream, _build_answer(received, routes))
            stream.shutdown(socket.SHUT_WR)


def _build_answer(request: bytes, routes: Routes) -> bytes:
    words = request.split(b"\r\n", 1)[0].decode("latin-1").split()
    method, path = (words[0], words[1].partition("?")[0]) if len(words) == 3 else ("", "")
    if method not in ("GET", "HEAD"):
        status, kind, body = text_answer(HTTPStatus.METHOD_NOT_ALLOWED, "GET only")
    elif path not in routes:
        status, kind, body = text_answer(
            HTTPStatus.NOT_FOUND, f"There are {', '.join(sorted(routes))}."
        )
    else:
        status, kind, body = routes[path]()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + (b"" if method == "HEAD" else body)
