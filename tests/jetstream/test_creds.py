from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.config.model import Connection
from jsplan.errors import ConnectError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import resolve_settings
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, User
from tests.conftest import PROGRAM
from tests.support.jwt import Operator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.sandbox import Server


@pytest.fixture(scope="module")
def creds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a creds file as `nsc` does."""
    return tmp_path_factory.mktemp("creds") / "a.creds"


@pytest.fixture(scope="module")
def operator_server(creds: Path) -> Iterator[Server]:
    """Start a server of a JWT operator that accepts the user of that file."""
    operator = Operator()
    login = User("A", None, None, operator.account("A").creds(creds.parent, creds.stem))
    with Sandbox(
        lambda port_of: Layout(
            "single",
            (Node("server", port_of("server"), login=login, extra=operator.configuration()),),
        ),
        binary=PROGRAM,
    ) as sandbox:
        yield sandbox["server"]


async def _answer(server: Server, creds: Path) -> bytes:
    link = NatsConnection(resolve_settings(Connection("main", url=server.url, creds=creds), {}))
    try:
        await link.open()
        return await link.request("$JS.API.INFO", b"")
    finally:
        await link.close()


def _changed(creds: Path, folder: Path, old: bytes, new: bytes) -> Path:
    copy = folder / "copy.creds"
    copy.write_bytes(creds.read_bytes().replace(old, new))
    return copy


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"], ids=["unix", "windows"])
async def test_a_creds_file_of_any_system(
    operator_server: Server, creds: Path, tmp_path: Path, line_end: bytes
) -> None:
    """A creds file with line ends of Windows logs in as well."""
    assert b"account_info_response" in await _answer(
        operator_server, _changed(creds, tmp_path, b"\n", line_end)
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (b"BEGIN NATS USER JWT", b"BEGIN", "holds no user JWT"),
        (b"BEGIN USER NKEY SEED", b"BEGIN", "holds no user JWT with its seed"),
        (b"\nSU", b"\nSX", "cannot use its credentials"),
    ],
    ids=["no JWT", "no seed", "broken seed"],
)
async def test_a_damaged_creds_file(
    operator_server: Server, creds: Path, tmp_path: Path, old: bytes, new: bytes, words: str
) -> None:
    """A damaged creds file is an error about the file, not a timeout or a refusal of the server."""
    with pytest.raises(ConnectError, match=words) as failed:
        await _answer(operator_server, _changed(creds, tmp_path, old, new))
    assert "connection main" in str(failed.value)
    assert not failed.value.is_offline
