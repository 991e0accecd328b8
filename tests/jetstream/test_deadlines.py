from __future__ import annotations

import asyncio
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
import trustme

from jsplan.backfill.protocol import RawConnection
from jsplan.errors import ApiError, ConnectError
from jsplan.jetstream import connection as links
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from tests.jetstream.test_tls import by_link
from tests.support.listening_server import ListeningServer, info_line, serve_greeting

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

#: Seconds: what the tests give an exchange, and a bound that is far above it and far below the time without a deadline.
DEADLINE, LONG = 0.3, 20.0


def target(port: int) -> ConnectionSettings:
    return ConnectionSettings(
        key="main", url=f"nats://127.0.0.1:{port}", shown="it", timeout=DEADLINE
    )


async def by_wire(wanted: ConnectionSettings) -> None:
    (await asyncio.to_thread(RawConnection, wanted)).close()


def dripping(before: bytes, drop: bytes) -> Callable[[ListeningServer, socket.socket], None]:
    """Send one text, then another again and again, so that the answer never ends."""

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(before)
        while not server.over.wait(0.02):
            stream.sendall(drop)

    return serve


GREETINGS = {
    "an INFO without an end": dripping(b"INFO {", b" "),
    "no PONG": dripping(info_line(), b"+OK "),
    "silence": dripping(b"", b""),
    "another protocol": dripping(b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
    "no object": dripping(b"INFO [1, 2]\r\n", b""),
    "a strange INFO": dripping(b'INFO {"max_payload": "x", "connect_urls": [5]}\r\n', b""),
    "a null in INFO": dripping(b'INFO {"max_payload": null, "headers": true}\r\n', b""),
    "deep JSON": dripping(b"INFO " + b"[" * 50_000 + b"\r\n", b""),
    "an INFO that is too large": dripping(b"INFO " + b" " * 3_000_000, b""),
}


@pytest.mark.parametrize("connect", [by_link, by_wire], ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", GREETINGS)
async def test_a_greeting_that_never_ends(connect: Any, kind: str) -> None:
    """The whole greeting of a server has one deadline, also if it never ends."""
    begun = time.monotonic()
    with (
        ListeningServer(GREETINGS[kind]) as server,
        pytest.raises(ConnectError, match="cannot be reached"),
    ):
        await connect(target(server.port))

    assert time.monotonic() - begun < LONG


async def test_a_server_that_does_not_close(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an encrypted connection does not wait for a silent server."""
    monkeypatch.setattr(links, "CLOSE_TIMEOUT", 0.05)
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").configure_cert(context)

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(info_line(tls_required=True))
        with context.wrap_socket(stream, server_side=True) as encrypted:
            while b"PING\r\n" not in server.read(encrypted):
                pass
            encrypted.sendall(b"PONG\r\n")
            server.over.wait()

    with ListeningServer(serve) as server:
        link = NatsConnection(
            ConnectionSettings(
                key="main",
                url=f"nats://127.0.0.1:{server.port}",
                shown="it",
                ca=str(tmp_path / "ca.pem"),
                timeout=LONG,
            )
        )
        await link.open()
        begun = time.monotonic()
        await link.close()

        assert time.monotonic() - begun < LONG


async def test_requests_that_are_not_answered() -> None:
    """Each kind of request ends after its timeout."""
    with ListeningServer(serve_greeting()) as server:
        link = NatsConnection(target(server.port))
        await link.open()
        try:
            for asking in (
                link.request("a", b""),
                link.request_many("a", b""),
                link.request_each([("a", b""), ("a", b"")], lambda _, data: data),
            ):
                with pytest.raises(ApiError, match="no answer to a from it within"):
                    await asking
        finally:
            await link.close()
