from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.backfill.protocol import RawConnection
from jsplan.errors import ApiError, ConnectError, JsplanError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.publisher import Publisher
from jsplan.jetstream.subscriber import Subscriber
from jsplan.sandbox import Sandbox
from jsplan.secrets import redact_url
from tests.conftest import PROGRAM
from tests.support.listening_server import ListeningServer, info_line, serve_greeting
from tests.support.pems import write_pems
from tests.support.relay import Relay
from tests.support.waiting import await_until

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterator

SECRET = "top-secret"


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Write an authority and certificates that it issued."""
    folder = tmp_path_factory.mktemp("pems")
    write_pems(folder)
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def secure(pems: dict[str, str]) -> Iterator[Callable[[str], int]]:
    """Return the ports of servers with TLS, by the further settings of their `tls` block."""
    made: dict[str, Sandbox] = {}

    def port(more: str) -> int:
        if more not in made:
            extra = more.replace(
                "TLS",
                f'cert_file: "{pems["server.pem"]}", key_file: "{pems["server.key"]}", ca_file: "{pems["ca.pem"]}"',
            )
            made[more] = Sandbox.single(
                extra=f"{extra}\nauthorization {{ user: u, password: {SECRET} }}", binary=PROGRAM
            )
            server = made[more]["server"]
            server.launch()
            server.wait_until(lambda: "Server is ready" in server.log_path.read_text(), "get ready")
        return made[more]["server"].port

    yield port
    for sandbox in made.values():
        sandbox.close()


def target(url: str, **settings: Any) -> ConnectionSettings:
    """Return settings with a password, for any address."""
    login: dict[str, Any] = {"user": "u", "password": SECRET}
    return ConnectionSettings("main", url, redact_url(url), timeout=0.5, **(login | settings))


async def by_link(wanted: ConnectionSettings) -> None:
    link = NatsConnection(wanted)
    try:
        await link.open()
    finally:
        await link.close()


async def by_subscriber(wanted: ConnectionSettings) -> None:
    listener = Subscriber(
        wanted, ["x"], on_message=lambda *_: None, on_gap=lambda _: None, on_denied=lambda _: None
    )
    try:
        await listener.open()
    finally:
        await listener.close()


async def by_publisher(wanted: ConnectionSettings) -> None:
    speaker = Publisher(wanted, "x")
    try:
        await speaker.publish([("1", b"{}")])
    finally:
        await speaker.close()


async def by_wire(wanted: ConnectionSettings) -> None:
    (await asyncio.to_thread(RawConnection, wanted)).close()


CLIENTS = [by_link, by_subscriber, by_publisher, by_wire]
SPELLINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "tls": ("tls://127.0.0.1:{0}", {}),
    "in capitals": (" TLS://127.0.0.1:{0}", {}),
    "password in the URL": (f"tls://u:{SECRET}@127.0.0.1:{{0}}", {"user": None, "password": None}),
    "token": ("tls://127.0.0.1:{0}", {"user": None, "password": None, "token": SECRET}),
    "ca": ("nats://127.0.0.1:{0}", {"ca": "ca.pem"}),
    "ca without a scheme": ("127.0.0.1:{0}", {"ca": "ca.pem"}),
    "certificate": ("nats://127.0.0.1:{0}", {"cert": "client.pem", "key_file": "client.key"}),
    "the second of two": ("nats://127.0.0.1:{0},tls://127.0.0.1:{0}", {}),
    "the first of two": ("tls://127.0.0.1:{0}, nats://127.0.0.1:{0}", {}),
    "handshake first": ("nats://127.0.0.1:{0}", {"tls_first": True}),
}


def fill_settings(settings: dict[str, Any], pems: dict[str, str]) -> dict[str, Any]:
    return {
        name: pems.get(value, value) if isinstance(value, str) else value
        for name, value in settings.items()
    }


@pytest.mark.parametrize("connect", CLIENTS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_server_without_tls_sees_no_credential(
    connect: Any, spelling: str, pems: dict[str, str]
) -> None:
    """A server that does not offer TLS is sent no credential, and the message says so."""
    url, settings = SPELLINGS[spelling]
    with ListeningServer(serve_greeting()) as server:
        with pytest.raises(ConnectError) as refused:
            await connect(target(url.format(server.port), **fill_settings(settings, pems)))

        assert (b"CONNECT" in server.received, SECRET.encode() in server.received) == (False, False)
        assert server.connections
    assert settings.get(
        "tls_first"
    ) or "does not offer TLS on this port. Nothing was sent to it." in str(refused.value)


@pytest.mark.parametrize("connect", CLIENTS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("offer", ["tls_required", "tls_available"])
async def test_a_server_that_only_promises_tls_sees_no_credential(connect: Any, offer: str) -> None:
    """A server that only promises TLS is sent no credential before the handshake."""

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(info_line(**{offer: True}))
        server.read(stream)

    with ListeningServer(serve) as server:
        with pytest.raises(ConnectError):
            await connect(target(f"tls://127.0.0.1:{server.port}"))

        assert (b"CONNECT" in server.received, SECRET.encode() in server.received) == (False, False)


@pytest.mark.parametrize("connect", [by_link, by_wire], ids=lambda way: way.__name__)
async def test_a_web_socket_in_the_clear_sees_no_credential(
    connect: Any, pems: dict[str, str]
) -> None:
    """`ws://` with `tls` settings is refused; a copy of messages speaks no WebSocket at all."""
    for url, settings in (
        ("ws://127.0.0.1:{0}", {"ca": pems["ca.pem"]}),
        ("wss://127.0.0.1:{0}", {}),
    ):
        with ListeningServer(serve_greeting()) as server:
            with pytest.raises(JsplanError):
                await connect(target(url.format(server.port), **settings))

            assert SECRET.encode() not in server.received


SERVERS: dict[str, tuple[str, dict[str, Any]]] = {
    "required": ("tls { TLS }", {}),
    "available": ("tls { TLS }\nallow_non_tls: true", {}),
    "handshake first": ("tls { TLS, handshake_first: true }", {"tls_first": True}),
    "certificate": ("tls { TLS, verify: true }", {"cert": "client.pem", "key_file": "client.key"}),
}


@pytest.mark.parametrize("connect", CLIENTS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("kind", SERVERS)
async def test_a_server_with_tls(
    connect: Any,
    kind: str,
    secure: Callable[[str], int],
    pems: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A server with TLS is reached encrypted, also where it would accept a plain connection.

    Nothing is logged about it, not even by asyncio.
    """
    extra, settings = SERVERS[kind]
    await connect(
        target(
            f"tls://127.0.0.1:{secure(extra)}", ca=pems["ca.pem"], **fill_settings(settings, pems)
        )
    )
    await asyncio.sleep(0)

    assert [record.getMessage() for record in caplog.records] == []


async def test_a_link_that_comes_back_to_a_server_without_tls(
    secure: Callable[[str], int], pems: dict[str, str]
) -> None:
    """A link that comes back to a server without TLS is lost: the server is sent nothing."""
    with Relay() as relay, ListeningServer(serve_greeting()) as plain:
        relay.target = secure("tls { TLS }")
        link = NatsConnection(target(f"nats://127.0.0.1:{relay.port}", ca=pems["ca.pem"]))
        await link.open()
        try:
            relay.target = plain.port
            relay.cut()
            relay.mend()
            await await_until(lambda: link.is_closed)
            with pytest.raises(ApiError, match="does not offer TLS"):
                await link.request("no.such.thing", b"", 0.2)
        finally:
            await link.close()

        assert plain.connections
        assert bytes(plain.received) == b""


async def test_a_listener_that_comes_back_to_a_server_without_tls(
    secure: Callable[[str], int], pems: dict[str, str]
) -> None:
    """A listener that comes back to a server without TLS sends nothing and is not listening."""
    with Relay() as relay, ListeningServer(serve_greeting()) as plain:
        relay.target = secure("tls { TLS }")
        wanted = target(f"nats://127.0.0.1:{relay.port}", ca=pems["ca.pem"])
        listener = Subscriber(
            wanted,
            ["x"],
            on_message=lambda *_: None,
            on_gap=lambda _: None,
            on_denied=lambda _: None,
        )
        hearing = asyncio.ensure_future(listener.listen())
        try:
            await await_until(lambda: listener.is_connected)
            relay.target = plain.port
            relay.cut()
            relay.mend()
            await await_until(lambda: plain.connections >= 2)
            assert [listener.is_connected] == [False]
        finally:
            hearing.cancel()
            await listener.close()

        assert bytes(plain.received) == b""


async def test_a_server_that_the_cluster_announces_without_tls(pems: dict[str, str]) -> None:
    """A server that the cluster announces is sent no credential without TLS either."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pems["server.pem"], pems["server.key"])

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        if server.connections > 1:
            return
        stream.sendall(info_line(tls_required=True, connect_urls=[f"127.0.0.1:{plain.port}"]))
        with context.wrap_socket(stream, server_side=True) as encrypted:
            while b"PING\r\n" not in server.read(encrypted):
                pass
            encrypted.sendall(b"PONG\r\n")

    with ListeningServer(serve_greeting()) as plain, ListeningServer(serve) as known:
        link = NatsConnection(target(f"nats://127.0.0.1:{known.port}", ca=pems["ca.pem"]))
        await link.open()
        try:
            await await_until(lambda: plain.connections > 0)
            await await_until(lambda: link.is_closed)
        finally:
            await link.close()

        assert b"CONNECT" in known.received
        assert bytes(plain.received) == b""
