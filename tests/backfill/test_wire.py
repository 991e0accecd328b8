from __future__ import annotations

from typing import TYPE_CHECKING

import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest

from jsplan.backfill.protocol import RawConnection
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    NoRespondersError,
    NotPermittedError,
)
from tests.backfill.backfill_pair import connection_target
from tests.support import jwt
from tests.support.pems import write_pems

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from jsplan.sandbox import Server
    from tests.backfill.conftest import Connect
    from tests.conftest import MakeServer

    Guarded = Callable[[str], Server]


def is_jetstream_reachable(connection: RawConnection) -> bool:
    """Return True if JetStream answers over this connection."""
    return "streams" in connection.request("$JS.API.INFO")


def test_a_plain_connection(server: Server, open_connection: Connect) -> None:
    """Requests are answered one after the other, and errors in answers are returned."""
    connection = open_connection(server)

    assert is_jetstream_reachable(connection)
    assert connection.request("$JS.API.STREAM.INFO.NONE")["error"]["err_code"] == 10059
    assert is_jetstream_reachable(connection)
    assert connection.max_payload == 1 << 20


def test_a_subject_without_responders(server: Server, open_connection: Connect) -> None:
    """A subject without responders is an error at once, and the connection stays usable."""
    connection = open_connection(server)

    with pytest.raises(NoRespondersError, match=r"no\.such\.thing at .* has no responder"):
        connection.request("no.such.thing")
    assert is_jetstream_reachable(connection)


def test_a_silent_server(server: Server, open_connection: Connect) -> None:
    """A request that is received and not answered ends after its timeout."""
    connection = open_connection(server)
    connection.subscribe("quiet")

    with pytest.raises(ApiTimeoutError, match="no answer to quiet"):
        connection.request("quiet", timeout=0.2)


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
    """Credentials from settings or URL are sent, and never shown in errors."""
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
    """A seed file signs the challenge of the server."""
    keys = jwt.Keys(nkeys.PREFIX_BYTE_USER)
    server = start_secured_server(f"authorization {{ users: [{{nkey: {keys.public}}}] }}")
    seed = tmp_path / "user.nk"
    seed.write_bytes(bytes(keys.seed) + b"\n")

    assert is_jetstream_reachable(open_connection(server, nkey=str(seed)))


@pytest.mark.parametrize("text", ["", "SUAINVALID", "-----BEGIN NATS USER JWT-----\nx\n"])
def test_invalid_credentials_files(
    start_secured_server: Guarded, open_connection: Connect, tmp_path: Path, text: str
) -> None:
    """A file without keys is reported without its content."""
    server = start_secured_server("authorization { token: t1 }")
    file = tmp_path / "user.creds"
    file.write_text(text)

    with pytest.raises(ConnectError, match="holds no user JWT with its seed"):
        open_connection(server, creds=str(file))


def test_an_address_without_a_server(open_connection: Connect, make_server: MakeServer) -> None:
    """A server that is down is an error that counts as offline."""
    server = make_server()
    server.stop()

    with pytest.raises(ConnectError, match="cannot be reached") as offline:
        open_connection(server)
    assert offline.value.is_offline


def test_the_next_url_is_tried(open_connection: Connect, server: Server) -> None:
    """Several URLs are tried in order."""
    assert is_jetstream_reachable(open_connection(server, url=f"nats://127.0.0.1:1,{server.url}"))


def test_a_denied_request(start_secured_server: Guarded, open_connection: Connect) -> None:
    """A denied request is an error at once that names the permission."""
    permissions = '{publish: {allow: ["$JS.API.INFO"]}, subscribe: ">"}'
    server = start_secured_server(
        f"authorization {{ users: [{{user: u, password: p, permissions: {permissions}}}] }}"
    )
    connection = open_connection(server, user="u", password="p")

    with pytest.raises(
        NotPermittedError, match=r"Permissions Violation for Publish to .*\$JS.API.STREAM.NAMES"
    ):
        connection.request("$JS.API.STREAM.NAMES")


def test_a_connection_that_breaks(make_server: MakeServer, open_connection: Connect) -> None:
    """A server that dies ends a wait at once."""
    server = make_server()
    connection = open_connection(server)
    server.kill()

    with pytest.raises(ApiError, match="was lost"):
        connection.request("$JS.API.INFO")


def test_messages_during_a_request_are_kept(server: Server, open_connection: Connect) -> None:
    """Messages that arrive during a request are kept for the next read."""
    connection = open_connection(server)
    connection.subscribe("mine")
    connection.send(b"PUB mine 3\r\none\r\nPUB mine 3\r\ntwo\r\n")
    assert is_jetstream_reachable(connection)

    buffer = bytearray(1000)
    count = connection.receive(memoryview(buffer), 5)

    assert bytes(buffer[:count]) == b"MSG mine 2 3\r\none\r\nMSG mine 2 3\r\ntwo\r\n"


def test_tls(start_secured_server: Guarded, open_connection: Connect, tmp_path: Path) -> None:
    """TLS works with an own authority and client certificate, and the host is checked."""
    folder = tmp_path
    write_pems(folder)
    pems = f'cert_file: "{folder}/server.pem", key_file: "{folder}/server.key", ca_file: "{folder}/ca.pem", verify: true'
    server = start_secured_server(f"tls {{ {pems} }}")
    files = {
        "ca": f"{folder}/ca.pem",
        "cert": f"{folder}/client.pem",
        "key_file": f"{folder}/client.key",
    }

    assert is_jetstream_reachable(
        open_connection(server, url=f"tls://127.0.0.1:{server.port}", **files)
    )
    with pytest.raises(ConnectError, match="TLS failed"):
        open_connection(server, url=f"tls://localhost:{server.port}", **files)


def test_plain_text_is_not_taken_for_tls(server: Server) -> None:
    """A URL with `tls` never connects in plain text."""
    with pytest.raises(ConnectError, match="does not offer TLS"):
        RawConnection(connection_target(server, url=f"tls://127.0.0.1:{server.port}"))


def test_a_creds_file(
    start_secured_server: Guarded, open_connection: Connect, tmp_path: Path
) -> None:
    """A creds file that nsc writes connects a user of a JWT account."""
    operator = jwt.Operator()
    creds = operator.account("A").creds(tmp_path, "ann")
    server = start_secured_server(operator.configuration())

    assert is_jetstream_reachable(open_connection(server, creds=str(creds)))
