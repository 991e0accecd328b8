"""`jsplan access --jwt` signs users, which a server of an operator takes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nats
import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest

from jsplan.cli.main import main
from jsplan.errors import ExitCode
from jsplan.sandbox.shapes import User
from tests.access.conftest import BASE, space_with
from tests.conftest import PROGRAM
from tests.support.account_sharing import creds_of, start_servers
from tests.support.jwt import Account, Keys, Operator, format_creds

if TYPE_CHECKING:
    from jsplan.sandbox import Sandbox
    from tests.support.workspaces import Space

APP: dict[str, Any] = {
    "name": "billing",
    "domain": "hub",
    "client": "py",
    "publishes": [{"stream": "hub/stream/ORDERS", "subjects": ["orders.eu.*"]}],
    "consumes": [{"consumer": "hub/consumer/ORDERS/PULL"}],
}
USER = Keys(nkeys.PREFIX_BYTE_USER)


@dataclass
class AccountWithSigningKey(Account):
    """An account with one more key that signs its users."""

    signing: Keys = field(default_factory=lambda: Keys(nkeys.PREFIX_BYTE_ACCOUNT))

    def claims(self) -> dict[str, Any]:
        """Return the claims with the signing key."""
        found = super().claims()
        return found | {"nats": found["nats"] | {"signing_keys": [self.signing.public]}}


def workspace_of(folder: Path, account: str, app: dict[str, Any] = APP, **login: Any) -> Space:
    """A workspace with one domain in this account, and an application in it."""
    connections = {"hub": {"url": "nats://127.0.0.1:1", "account": account} | login}
    return space_with(
        folder,
        app,
        connections=connections,
        domains={"hub": {"connection": "hub"}},
        streams=BASE["streams"][:1],
        kv=[],
        object_stores=[],
    )


@pytest.mark.matrix
@pytest.mark.parametrize("signer", ["account", "signing key"])
async def test_a_server_takes_the_user(
    signer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], sandboxes: list[Sandbox]
) -> None:
    """The user may do what the application declares, and nothing else."""
    operator = Operator()
    account = AccountWithSigningKey("SHOP")
    operator.accounts["SHOP"] = account
    creds = creds_of(operator, tmp_path)
    login = User("SHOP", None, None, creds["SHOP"])
    servers = start_servers(operator.configuration(), login, binary=PROGRAM)
    sandboxes.append(servers)
    servers.start()
    own = {"url": servers["hub"].url, "creds": str(creds["SHOP"])}
    space = workspace_of(tmp_path, account.public, APP | {"nkey": USER.public}, **own)
    await asyncio.to_thread(space.apply)
    keys, seed = account.signing if signer == "signing key" else account.keys, tmp_path / "key.nk"
    seed.write_bytes(keys.seed + b"\n")

    folder = str(space.folder)
    assert main(["access", "-C", folder, "--jwt", "billing", "--signing-key", str(seed)]) == 0
    token = capsys.readouterr().out.strip()

    path, denied = tmp_path / "billing.creds", list[str]()
    path.write_text(format_creds(token, USER))

    async def on_error(error: Exception) -> None:
        denied.append(str(error))

    client = await nats.connect(
        servers["hub"].url,
        user_credentials=str(path),
        inbox_prefix=b"_INBOX_billing",
        error_cb=on_error,
    )
    stream = client.jetstream(timeout=10)
    await stream.publish("orders.eu.1", b"1")
    pull = await stream.pull_subscribe("orders.eu.>", durable="PULL", stream="ORDERS")
    await (await pull.fetch(1, timeout=10))[0].ack_sync(timeout=10)
    assert denied == []
    await client.publish("orders.us.1", b"2")
    while not denied:
        await client.flush()
    await client.close()
    assert 'publish to "orders.us.1"' in denied[0]


@pytest.mark.parametrize(
    ("app", "arguments", "text"),
    [
        ({}, ["--jwt", "billing"], "--jwt and --signing-key belong together"),
        ({}, ["--jwt", "biling", "--signing-key", "key"], 'there is no application "biling"'),
        ({}, ["--jwt", "billing", "--signing-key", "key"], "application billing has no `nkey`"),
        (
            {"nkey": USER.public},
            ["--jwt", "billing", "--signing-key", "key"],
            "the public key of the account of application billing is not known",
        ),
        ({"nkey": "UABC"}, [], "`nkey` of an application is no public key of a user"),
    ],
)
def test_what_cannot_be_signed(
    app: dict[str, Any],
    arguments: list[str],
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The message says what is missing."""
    workspace_of(tmp_path, "SHOP", APP | app)

    assert main(["access", "-C", str(tmp_path), *arguments]) in (ExitCode.ERROR, ExitCode.USAGE)

    assert text in "".join(capsys.readouterr())


@pytest.mark.parametrize("content", [None, b"", b"SUAIBDPBAUTWCWBKIO6XHQNINK5FWJW4OHLXC3HQ"])
def test_a_file_without_a_key(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that cannot sign is named, and never shown."""
    account, key = Keys(nkeys.PREFIX_BYTE_ACCOUNT), tmp_path / "key.nk"
    workspace_of(tmp_path, account.public, APP | {"nkey": USER.public})
    if content is not None:
        key.write_bytes(content)

    words = ["access", "-C", str(tmp_path), "--jwt", "billing", "--signing-key", str(key)]
    assert main(words) != 0

    printed = "".join(capsys.readouterr())
    assert "key.nk" in printed
    assert "SUAIB" not in printed
