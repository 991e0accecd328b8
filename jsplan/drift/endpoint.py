"""`/metrics`, `/healthz` and `/readyz` over HTTP, answered by the loop that does the work: one that hangs does not answer.

As little HTTP as Prometheus and Kubernetes need: GET and HEAD, one request per connection, everything bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import AsyncIterator, Callable
from http import HTTPStatus
from typing import Final

from jsplan.drift.asyncio_utils import cancel_and_wait
from jsplan.errors import JsplanError

#: Seconds and bytes that a request may take, and requests at once.
REQUEST_TIMEOUT: float = 5.0
MAX_REQUEST_BYTES: Final = 16 * 1024
MAX_CONNECTIONS: Final = 32
#: Seconds until it is tried again to let somebody in.
ACCEPT_RETRY: Final = 0.05

#: What a path answers: status, content type, body.
Answer = tuple[HTTPStatus, str, bytes]
Routes = dict[str, Callable[[], Answer]]


def parse_listen_address(text: str) -> tuple[str | None, int]:
    """`:9464`, `127.0.0.1:9464` or `[::1]:9464` as host (None: all) and port. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f'"{text}" is not HOST:PORT or :PORT')
    return host.strip("[]") or None, int(port)


def text_answer(status: HTTPStatus, text: str) -> Answer:
    """A short answer for people."""
    return status, "text/plain; charset=utf-8", f"{text}\n".encode()


@contextlib.asynccontextmanager
async def serve(place: str, routes: Routes) -> AsyncIterator[int]:
    """Serve as long as the context lasts; gives the port. Raises JsplanError when the address cannot be had."""
    try:
        sockets = _open_sockets(*parse_listen_address(place))
    except OSError as error:
        raise JsplanError(
            f"cannot serve metrics and health at {place}: {error.strerror}",
            hint="Give another --metrics.",
        ) from None
    guests: dict[asyncio.Task[None], None] = {}
    doors = [asyncio.create_task(_accept(one, routes, guests)) for one in sockets]
    try:
        yield int(sockets[0].getsockname()[1])
    finally:
        await cancel_and_wait(doors)
        await cancel_and_wait(list(guests))
        for one in sockets:
            one.close()


def _open_sockets(host: str | None, port: int) -> list[socket.socket]:
    """Open every address of the host that there is on this machine; None is all of them. Raises OSError where there is none."""
    found, failure = (
        list[socket.socket](),
        OSError(errno.EADDRNOTAVAIL, "there is no such address here"),
    )
    wanted = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    for family, address in dict.fromkeys(
        (family, address[:2]) for family, _, _, _, address in wanted
    ):
        at = (
            found[0].getsockname()[1] if found else port
        )  # a port that was chosen is the same for all
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
    door: socket.socket, routes: Routes, guests: dict[asyncio.Task[None], None]
) -> None:
    """Let in one after the other. Where too many are in, the one that came first has to go: it had the longest time to ask."""
    loop = asyncio.get_running_loop()
    while True:
        if len(guests) >= MAX_CONNECTIONS:
            await cancel_and_wait([next(iter(guests))])
        try:
            stream, _ = await loop.sock_accept(door)
        except OSError:  # it hung up, or the process has no descriptor left
            await cancel_and_wait(list(guests)[:1])
            await asyncio.sleep(ACCEPT_RETRY)
            continue
        guest = asyncio.create_task(_serve_request(stream, routes))
        guests[guest] = None
        guest.add_done_callback(guests.pop)


async def _serve_request(stream: socket.socket, routes: Routes) -> None:
    """Answer one request, all of it in bounded time and space."""
    loop, asked = asyncio.get_running_loop(), b""
    with (
        stream,
        contextlib.suppress(TimeoutError, OSError),
    ):  # whoever asked like that gets no answer
        stream.setblocking(False)
        async with asyncio.timeout(REQUEST_TIMEOUT):
            while b"\r\n\r\n" not in asked:
                more = await loop.sock_recv(stream, MAX_REQUEST_BYTES)
                if not more or len(asked) + len(more) > MAX_REQUEST_BYTES:
                    return
                asked += more
            await loop.sock_sendall(stream, _build_answer(asked, routes))
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
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + (b"" if method == "HEAD" else body)
