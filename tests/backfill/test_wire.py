from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest
import trustme

from jsplan.backfill.protocol import RawConnection
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    NoRespondersError,
    NotPermittedError,
)
from tests.backfill.conftest import connection_target
from tests.support import jwt

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.backfill.conftest import Connect
    from tests.conftest import MakeServer

    Guarded = Callable[[str], Server]


def is_jetstream_reachable(wire: RawConnection) -> bool:
    """Whether JetStream can be asked over it."""
    return "streams" in wire.request("$JS.API.INFO")


def test_a_plain_connection(server: Server, open_connection: Connect) -> None:
    """Requests are answered one after the other, and errors in an answer are handed on."""
    wire = open_connection(server)

    assert is_jetstream_reachable(wire)
    assert wire.request("$JS.API.STREAM.INFO.NONE")["error"]["err_code"] == 10059
    assert is_jetstream_reachable(wire)
    assert wire.max_payload == 1 << 20


def test_no_server_answers(server: Server, open_connection: Connect) -> None:
    """No responders is an answer at once, and the connection stays usable."""
    wire = open_connection(server)

    with pytest.raises(NoRespondersError, match=r"no\.such\.thing at .* has no responder"):
        wire.request("no.such.thing")
    assert is_jetstream_reachable(wire)


def test_a_silent_server(server: Server, open_connection: Connect) -> None:
    """A request that somebody hears and nobody answers ends after its timeout."""
    wire = open_connection(server)
    wire.subscribe("quiet")

    with pytest.raises(ApiTimeoutError, match="no answer to quiet"):
        wire.request("quiet", timeout=0.2)


AUTHORIZED = {
    "user in the settings": (
        'authorization { user: u, password: "p w" }',
        {"user": "u", "password": "p w"},
    ),
    "user in the URL": (
        'authorization { user: u, password: "p w" }',
        {"url": "nats://u:p%20w@127.0.0.1:{port}"},
    ),
    "token in the settings": ("authorization { token: t1 }", {"token": "t1"}),
    "token in the URL": ("authorization { token: t1 }", {"url": "nats://t1@127.0.0.1:{port}"}),
}


@pytest.mark.parametrize(("extra", "settings"), AUTHORIZED.values(), ids=AUTHORIZED)
def test_credentials(
    start_secured_server: Guarded, open_connection: Connect, extra: str, settings: dict[str, str]
) -> None:
    """A server that asks who we are is told, wherever that was written; it is not shown in errors."""
    server = start_secured_server(extra)
    settings = {
        name: value.format(port=server.port) if name == "url" else value
        for name, value in settings.items()
    }

    assert is_jetstream_reachable(open_connection(server, **settings))
    with pytest.raises(ConnectError, match="the server refused the credentials") as refused:
        open_connection(server, user="u", password="wrong-secret")
    assert "wrong-secret" not in str(refused.value)


def test_an_nkey(start_secured_server: Guarded, open_connection: Connect, tmp_path: Path) -> None:
    """A seed file signs the server's challenge."""
    keys = jwt.Keys(nkeys.PREFIX_BYTE_USER)
    server = start_secured_server(f"authorization {{ users: [{{nkey: {keys.public}}}] }}")
    seed = tmp_path / "user.nk"
    seed.write_bytes(bytes(keys.seed) + b"\n")

    assert is_jetstream_reachable(open_connection(server, nkey=str(seed)))


@pytest.mark.parametrize("text", ["", "SUAINVALID", "-----BEGIN NATS USER JWT-----\nx\n"])
def test_credentials_that_are_none(
    start_secured_server: Guarded, open_connection: Connect, tmp_path: Path, text: str
) -> None:
    """A file without keys is named as that, without its contents."""
    server = start_secured_server("authorization { token: t1 }")
    file = tmp_path / "user.creds"
    file.write_text(text)

    with pytest.raises(ConnectError, match="cannot read its credentials: it has no usable key"):
        open_connection(server, creds=str(file))


def tls_server(
    start_secured_server: Guarded, folder: Path, more: str = ""
) -> tuple[Server, dict[str, Any]]:
    """A server with a certificate of its own authority, which asks for one of ours."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    for name, issued in (
        ("server", authority.issue_cert("127.0.0.1")),
        ("client", authority.issue_cert("client@example.com")),
    ):
        issued.cert_chain_pems[0].write_to_path(str(folder / f"{name}.pem"))
        issued.private_key_pem.write_to_path(str(folder / f"{name}.key"))
    pems = f'cert_file: "{folder}/server.pem", key_file: "{folder}/server.key", ca_file: "{folder}/ca.pem", verify: true'
    server = start_secured_server(f"tls {{ {pems} {more} }}")
    return server, {
        "ca": f"{folder}/ca.pem",
        "cert": f"{folder}/client.pem",
        "key_file": f"{folder}/client.key",
    }


def test_an_address_without_a_server(open_connection: Connect, make_server: MakeServer) -> None:
    """A server that is down is away, not wrong."""
    server = make_server()
    server.stop()

    with pytest.raises(ConnectError, match="cannot be reached") as away:
        open_connection(server)
    assert away.value.is_offline


def test_the_next_url_is_tried(open_connection: Connect, server: Server) -> None:
    """Several URLs with commas between are tried in order."""
    assert is_jetstream_reachable(open_connection(server, url=f"nats://127.0.0.1:1,{server.url}"))


def test_what_the_user_may_not_publish(
    start_secured_server: Guarded, open_connection: Connect
) -> None:
    """A denied request is named as that at once."""
    permissions = '{publish: {allow: ["$JS.API.INFO"]}, subscribe: ">"}'
    server = start_secured_server(
        f"authorization {{ users: [{{user: u, password: p, permissions: {permissions}}}] }}"
    )
    wire = open_connection(server, user="u", password="p")

    with pytest.raises(
        NotPermittedError, match=r"Permissions Violation for Publish to .*\$JS.API.STREAM.NAMES"
    ):
        wire.request("$JS.API.STREAM.NAMES")


def test_a_connection_that_breaks(make_server: MakeServer, open_connection: Connect) -> None:
    """A server that dies ends a wait at once."""
    server = make_server()
    wire = open_connection(server)
    server.kill()

    with pytest.raises(ApiError, match="was lost"):
        wire.request("$JS.API.INFO")


def test_answers_do_not_lose_what_else_arrives(server: Server, open_connection: Connect) -> None:
    """Messages that come while a request is under way are there for whoever reads next."""
    wire = open_connection(server)
    wire.subscribe("mine")
    wire.send(b"PUB mine 3\r\none\r\nPUB mine 3\r\ntwo\r\n")
    assert is_jetstream_reachable(wire)

    buffer = bytearray(1000)
    count = wire.receive(memoryview(buffer), 5)

    assert bytes(buffer[:count]) == b"MSG mine 2 3\r\none\r\nMSG mine 2 3\r\ntwo\r\n"


def test_tls(start_secured_server: Guarded, open_connection: Connect, tmp_path: Path) -> None:
    """TLS with an authority and a certificate of our own; the host is checked."""
    server, files = tls_server(start_secured_server, tmp_path)

    assert is_jetstream_reachable(
        open_connection(server, url=f"tls://127.0.0.1:{server.port}", **files)
    )
    with pytest.raises(ConnectError, match="TLS failed"):
        open_connection(server, url=f"tls://localhost:{server.port}", **files)


def test_plain_text_is_not_taken_for_tls(server: Server) -> None:
    """A URL that says tls never becomes a connection in the clear."""
    with pytest.raises(ConnectError, match="does not offer TLS"):
        RawConnection(connection_target(server, url=f"tls://127.0.0.1:{server.port}"))


def test_a_creds_file(
    start_secured_server: Guarded, open_connection: Connect, tmp_path: Path
) -> None:
    """A user of a JWT account is let in by the creds file that nsc writes."""
    operator = jwt.Operator()
    creds = operator.account("A").creds(tmp_path, "ann")
    server = start_secured_server(operator.configuration())

    assert is_jetstream_reachable(open_connection(server, creds=str(creds)))
