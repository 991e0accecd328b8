"""Contexts of the nats CLI against real servers, over both kinds of connection."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nkeys  # type: ignore[import-untyped]  # it has no stubs
import pytest

from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.cli.main import main
from jsplan.config.model import Connection
from jsplan.errors import ConnectError
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.context_files import CONTEXT_KEYS, SCHEMES, Use
from jsplan.jetstream.contexts import resolve_accounts, resolve_settings
from jsplan.sandbox import Sandbox
from jsplan.sandbox.shapes import Layout, Node, User
from tests.conftest import PROGRAM
from tests.support.jwt import Keys, Operator
from tests.support.pems import write_pems
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jsplan.jetstream.contexts import ConnectionSettings
    from jsplan.sandbox import Server

PASSWORD = "pass-of-ann"
TOKEN = "token-of-ann"

DATA: dict[str, dict[str, Any]] = read_yaml(
    Path(__file__).with_name("context_logins.yaml").read_text("utf-8")
)
CASES, REFUSED = DATA["cases"], DATA["refused"]


@dataclass
class Place:
    """A home with key files, programs and contexts, and one server for each way to log in."""

    home: Path
    texts: dict[str, str]
    configurations: dict[str, str]
    login: User
    servers: dict[str, Server] = field(default_factory=dict)
    sandboxes: list[Sandbox] = field(default_factory=list)

    def server(self, way: str) -> Server:
        """Return the server of a way to log in; it is started once."""
        if way not in self.servers:
            extra = self.configurations[way]
            sandbox = Sandbox(
                lambda port_of: Layout(
                    "single", (Node("server", port_of("server"), login=self.login, extra=extra),)
                ),
                binary=PROGRAM,
            )
            self.sandboxes.append(sandbox)
            server = sandbox["server"]
            server.launch()
            server.wait_until(lambda: "Server is ready" in server.log_path.read_text(), "get ready")
            self.servers[way] = server
        return self.servers[way]

    def write(self, context: dict[str, Any] | str) -> None:
        """Write the context `shop`."""
        folder = self.home / ".config" / "nats" / "context"
        folder.mkdir(parents=True, exist_ok=True)
        text = context if isinstance(context, str) else json.dumps(context)
        (folder / "shop.json").write_text(text, "utf-8")

    def environ(self, more: dict[str, str] | None = None) -> dict[str, str]:
        """Return the environment of jsplan."""
        filled = {name: value.format(**self.texts) for name, value in (more or {}).items()}
        return {"HOME": str(self.home), "PATH": f"{self.home}/bin:/usr/bin:/bin"} | filled

    def resolve(self, case: str) -> ConnectionSettings:
        """Write the context of a case, and resolve it."""
        way, context = CASES[case]["server"], CASES[case]["context"]
        more = CASES[case].get("environment", {})
        server = self.server(way)
        (self.home / "service").write_text(server.url, "utf-8")
        filled = {
            name: value.format(port=server.port, **self.texts) if isinstance(value, str) else value
            for name, value in context.items()
        }
        self.write({"url": server.url} | filled)
        return resolve_settings(Connection("main", context="shop"), self.environ(more))


#: Programs that answer as those of the same name do.
PROGRAMS = {
    "op": """#!/bin/sh
[ "$1" = read ] || exit 2
case "$2" in
  op://vault/item/creds) cat "$HOME/ann.creds";;
  op://vault/item/nkey) cat "$HOME/user.nk";;
  op://vault/item/password) cat "$HOME/password";;
  *) echo "part-of-a-secret"; echo "[ERROR] isn't an item: $2" >&2; exit 1;;
esac
""",
    "nsc": """#!/bin/sh
[ "$1 $2" = "generate profile" ] || exit 2
case "$3" in
  nsc://O/A/ann) creds="\\"user_creds\\": \\"$HOME/ann.creds\\", ";;
  nsc://O/A/nkey) creds="\\"user_creds\\": \\"$HOME/nkey.creds\\", ";;
  nsc://O/A/none) creds="";;
  nsc://O/A/garbage) echo "part-of-a-secret"; exit 0;;
  *) echo "part-of-a-secret"; echo "Error: invalid user" >&2; exit 1;;
esac
echo "{$creds\\"operator\\": {\\"service\\": [\\"$(cat "$HOME/service")\\"]}}"
""",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Write key files and programs into a home."""
    home = tmp_path_factory.mktemp("home")
    operator, user = Operator(), Keys(nkeys.PREFIX_BYTE_USER)
    account = operator.account("A")
    creds = account.creds(home, "ann")
    bearer = account.creds(home, "bearer", bearer_token=True)
    write_pems(home)
    (home / "user.nk").write_bytes(bytes(user.seed) + b"\n")
    (home / "password").write_text(f"{PASSWORD}\n", "utf-8")
    (home / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (home / "bin" / name).write_text(text, "utf-8")
        (home / "bin" / name).chmod(0o755)

    def lines(path: Path) -> list[str]:
        return [
            line
            for line in path.read_text("utf-8").splitlines()
            if line and not line.startswith(("-", "*"))
        ]

    seed = bytes(user.seed).decode()
    (home / "nkey.creds").write_text(
        creds.read_text("utf-8").replace(lines(creds)[-1], seed), "utf-8"
    )
    texts = {
        "folder": str(home),
        "creds": creds.read_text("utf-8"),
        "creds64": encode(creds.read_bytes()),
        "jwt": lines(creds)[0],
        "seed": lines(creds)[-1],
        "bearer": lines(bearer)[0],
        "nkey": seed,
        "nkey64": encode(f"{seed}\n".encode()),
        "password64": encode(PASSWORD.encode()),
    }
    tls = f'cert_file: "{home}/server.pem", key_file: "{home}/server.key", ca_file: "{home}/ca.pem", verify: true'
    made = Place(
        home,
        texts,
        {
            "user": f"authorization {{ users: [{{user: ann, password: {PASSWORD}}}] }}",
            "token": f"authorization {{ token: {TOKEN} }}",
            "nkey": f"authorization {{ users: [{{nkey: {user.public}}}] }}",
            "jwt": operator.configuration(),
            "tls": f"tls {{ {tls} }}",
            "tls_first": f"tls {{ {tls}, handshake_first: true }}",
        },
        User(None, None, None),
    )
    yield made
    for sandbox in made.sandboxes:
        sandbox.close()


def encode(content: bytes) -> str:
    return base64.b64encode(content).decode()


async def ask_by_link(settings: ConnectionSettings) -> bytes:
    """Ask over the connection of plan and apply."""
    link = NatsConnection(settings)
    try:
        await link.open()
        return await link.request("$JS.API.INFO", b"")
    finally:
        await link.close()


async def ask_by_wire(settings: ConnectionSettings) -> bytes:
    """Ask over the connection of a backfill's task, which receives its settings by export."""

    def ask() -> bytes:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("JSPLAN_ENDPOINT_main", "")
            export_connection(settings)
            connection: RawConnection = Endpoint("main", "$JS.API").open()
        answer = connection.request("$JS.API.INFO")
        connection.close()
        return json.dumps(answer).encode()

    return await asyncio.to_thread(ask)


@pytest.mark.parametrize("ask", [ask_by_link, ask_by_wire], ids=["link", "wire"])
@pytest.mark.parametrize("case", CASES)
async def test_each_key_logs_in(place: Place, case: str, ask: Callable[..., Any]) -> None:
    """Each key and scheme of a context logs in at a real server, with both connections."""
    settings = place.resolve(case)

    assert b"account_info_response" in await ask(settings)
    secrets = (PASSWORD, TOKEN, place.texts["seed"], place.texts["nkey"], place.texts["jwt"])
    assert [secret for secret in secrets if secret in repr(settings)] == []


def test_the_table_is_complete() -> None:
    """Each key of the table that is used or ignored has a case above, each scheme too."""
    written = {name.lower() for case in CASES.values() for name in case["context"]}
    values = {str(value) for case in CASES.values() for value in case["context"].values()}

    assert {key.name for key in CONTEXT_KEYS if key.use is not Use.REFUSED} <= written
    assert [name for name in SCHEMES if not any(v.startswith(f"{name}:") for v in values)] == []


@pytest.mark.parametrize("key", [key.name for key in CONTEXT_KEYS if key.use is Use.REFUSED])
def test_a_refused_key(place: Place, key: str) -> None:
    """A key that jsplan cannot use is an error that names it and the file."""
    place.write({key: ["x"] if key == "windows_ca_certs_match" else "x"})
    message = refuse(place)

    assert f"cannot use `{key}`" in message
    assert "shop.json" in message
    assert ("ssh -L" if key == "socks_proxy" else "as files") in message


def refuse(place: Place, **more: str) -> str:
    """Return the message and the hint of the error that the context is."""
    with pytest.raises(ConnectError) as caught:
        resolve_settings(Connection("main", context="shop"), place.environ(more))
    return f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("case", REFUSED)
def test_a_value_that_cannot_be_used(place: Place, case: str) -> None:
    """A value that cannot be used is an error that names its key and shows no secret."""
    context, words = REFUSED[case].values()
    (place.home / "service").write_text("nats://h", "utf-8")
    place.write(context)
    message = refuse(place, EMPTY="")

    assert [word for word in words if word not in message] == []
    assert "secret" not in message
    assert "12345678" not in message


@pytest.mark.parametrize(
    ("key", "value", "program"),
    [
        ("creds", "op://v/i/f", "op"),
        ("password", "op://v/i/f", "op"),
        ("creds", "nsc://O/A/u", "nsc"),
        ("nsc", "nsc://O/A/u", "nsc"),
    ],
)
def test_a_program_that_is_missing(place: Place, key: str, value: str, program: str) -> None:
    """Without the program, the error names the key and the program."""
    place.write({key: value} | ({"user": "ann"} if key == "password" else {}))

    message = refuse(place, PATH="/nowhere")
    assert f"`{key}` of the nats context" in message
    assert f"needs the program {program}, which is not on the PATH" in message


def test_a_login_beside_a_context(place: Place) -> None:
    """A login of the files replaces that of the context, which is not even looked up."""
    place.write({"creds": "op://vault/item/none", "token": "t", "url": "nats://h"})
    found = resolve_settings(
        Connection("main", context="shop", user="u", password="p"), place.environ()
    )
    assert (found.user, found.password, found.token, found.creds) == ("u", "p", None, None)

    place.write({"user": "context", "password": "of-context", "url": "nats://h"})
    selected = place.environ({"NATS_CONTEXT": "shop", "NATS_CREDS": "/env.creds"})
    found = resolve_settings(Connection("main"), selected)
    assert (found.url, found.user, found.password, found.creds) == (
        "nats://h", None, None, "/env.creds",
    )  # fmt: skip


def test_a_context_by_its_path(place: Place) -> None:
    """A context is also found by an absolute path that ends with .json."""
    (place.home / "other.json").write_text('{"url": "nats://other"}', "utf-8")
    for name in (f"{place.home}/other.json", "~/other.json"):
        found = resolve_settings(Connection("main", context=name), place.environ())
        assert found.url == "nats://other"


async def test_renewed_creds(place: Place, tmp_path: Path) -> None:
    """A creds file is read again for each connection, so it can be renewed meanwhile."""
    server = place.server("jwt")
    creds = tmp_path / "ann.creds"
    creds.write_text("nothing", "utf-8")
    settings = resolve_settings(Connection("main", url=server.url, creds=creds), {})
    for ask in (ask_by_link, ask_by_wire):
        with pytest.raises(ConnectError, match="holds no user JWT"):
            await ask(settings)
    creds.write_text(place.texts["creds"], "utf-8")
    for ask in (ask_by_link, ask_by_wire):
        assert b"account_info_response" in await ask(settings)


@pytest.mark.parametrize("case", ["creds", "creds data", "user_jwt", "creds nsc"])
def test_the_account_of_a_context(place: Place, case: str) -> None:
    """The account is known from the user JWT, wherever that comes from."""
    place.resolve(case)
    found = resolve_accounts({"main": Connection("main", context="shop")}, place.environ())
    assert found["main"].startswith("A")


@pytest.mark.parametrize("case", ["password env", "nkey data", "creds op", "user_jwt env"])
def test_no_secret_of_a_context_is_shown(
    place: Place,
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Plan and apply with a context show no secret of it, and write none into state."""
    place.resolve(case)
    for name, value in place.environ(CASES[case].get("environment", {})).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    name = f"S-{case.replace(' ', '-')}"
    (tmp_path / "jsplan.yaml").write_text(
        "jsplan: 1\nworkspace: shop\n"
        "connections: {main: {context: shop}}\n"
        "domains: {hub: {connection: main, js_domain: null}}\n"
        f"streams: [{{name: {name}, subjects: [{name}]}}]\n",
        "utf-8",
    )
    written = ""
    for words in (
        ["plan", "-o", str(tmp_path / "p.jsplan")],
        ["apply", "-y"],
        ["status", "--json"],
    ):
        code = main(["-C", str(tmp_path), "-vv", *words])
        printed = capsys.readouterr()
        written += printed.out + printed.err
        assert code in (0, 2), written
    written += "".join(
        path.read_text("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()
    )
    secrets = (PASSWORD, place.texts["seed"], place.texts["nkey"], place.texts["jwt"])
    assert name in written
    assert [secret for secret in secrets if secret in written] == []
