from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jsplan.config.model import Connection, Tls
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import DEFAULT_URL, resolve_settings
from jsplan.secrets import redact_url
from jsplan.units import SECOND


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Write a home with two contexts of the nats CLI, `shop` selected."""
    write(
        tmp_path,
        "shop",
        {
            "url": "nats://shop:4222",
            "user": "u",
            "password": "p",
            "jetstream_domain": "x",
            "tls_first": True,
        },
    )
    write(
        tmp_path,
        "other",
        {"url": "nats://other:4222", "creds": "~/a.creds", "ca": "/ca.pem", "inbox_prefix": "_I"},
    )
    (tmp_path / ".config" / "nats" / "context.txt").write_text("shop\n")
    return tmp_path


def write(home: Path, name: str, context: Any) -> None:
    folder = home / ".config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(
        context if isinstance(context, str) else json.dumps(context)
    )


def test_a_connection_that_names_a_url_ignores_everything_else(home: Path) -> None:
    """A connection that names a URL ignores NATS_* and the selected context."""
    environ = {
        "HOME": str(home),
        "NATS_USER": "env",
        "NATS_CREDS": "/env.creds",
        "NATS_URL": "nats://env",
        "NATS_CONTEXT": "other",
    }
    found = resolve_settings(
        Connection("hub", url="nats://files:4222", timeout=2 * SECOND), environ
    )

    assert (found.url, found.user, found.creds, found.timeout) == (
        "nats://files:4222",
        None,
        None,
        2.0,
    )


def test_a_connection_that_names_a_context(home: Path) -> None:
    """A context is read as the nats CLI does; keys beside it win, and NATS_* is ignored."""
    environ = {
        "HOME": str(home),
        "NATS_USER": "env",
        "NATS_CREDS": "/env.creds",
        "NATS_URL": "nats://env",
    }
    shop = resolve_settings(Connection("hub", context="shop", password="mine"), environ)
    assert (shop.url, shop.user, shop.password, shop.creds, shop.tls_first) == (
        "nats://shop:4222",
        "u",
        "mine",
        None,
        True,
    )

    other = resolve_settings(Connection("hub", context="other"), environ)
    assert other.creds == str(home / "a.creds")
    assert (other.ca, other.inbox_prefix, other.user) == ("/ca.pem", "_I", None)


def test_a_connection_that_names_nothing(home: Path) -> None:
    """An empty connection takes the selected context, then NATS_*, then the files.

    Without any of them it is the local server.
    """
    environ = {"HOME": str(home)}
    assert resolve_settings(Connection("hub"), environ).url == "nats://shop:4222"
    assert (
        resolve_settings(Connection("hub"), environ | {"NATS_CONTEXT": "other"}).url
        == "nats://other:4222"
    )
    assert (
        resolve_settings(Connection("hub"), environ | {"NATS_URL": "nats://env"}).url
        == "nats://env"
    )
    assert (
        resolve_settings(
            Connection("hub", user="files"), environ | {"NATS_USER": "env", "NATS_PASSWORD": "e"}
        ).user
        == "files"
    )
    tls = resolve_settings(
        Connection("hub", tls=Tls(ca=Path("/files.pem"))),
        environ | {"NATS_CA": "/env.pem", "NATS_CERT": "/c", "NATS_KEY": "/k"},
    )
    assert (tls.ca, tls.cert, tls.key_file) == ("/files.pem", "/c", "/k")
    assert resolve_settings(Connection("hub"), {"HOME": "/nowhere"}).url == DEFAULT_URL


def test_xdg_config_home(home: Path) -> None:
    """Contexts are looked for where the nats CLI keeps them."""
    environ = {"HOME": "/nowhere", "XDG_CONFIG_HOME": str(home / ".config")}
    assert resolve_settings(Connection("hub", context="shop"), environ).url == "nats://shop:4222"


@pytest.mark.parametrize(
    ("context", "words"),
    [
        (None, ["broken", "other, shop"]),
        ("{", ["not JSON"]),
        ("[" * 100_000, ["not JSON"]),
        ("[]", ["not a JSON object"]),
        ({"nsc": "nsc://o/a/u"}, ["nsc", "name a file"]),
        ({"url": 5}, ["url", "text"]),
    ],
    ids=["missing", "no-json", "nested", "list", "nsc", "number"],
)
def test_a_context_that_cannot_be_used(home: Path, context: Any, words: list[str]) -> None:
    """A context that cannot be used is an error that names it and says what to do."""
    if context is not None:
        write(home, "broken", context)
    with pytest.raises(ConnectError) as caught:
        resolve_settings(Connection("hub", context="broken"), {"HOME": str(home)})
    text = f"{caught.value} {caught.value.hint}"

    assert [word for word in [*words, "broken"] if word not in text] == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("nats://u:p@host:4222", "nats://host:4222"),
        ("nats://token@host", "nats://host"),
        ("nats://u:p@ss@host", "nats://host"),
        ("u:p@host:1", "host:1"),
        ("nats://a:b@x:1, nats://c:d@y:2", "nats://x:1,nats://y:2"),
        ("tls://host", "tls://host"),
    ],
)
def test_urls_are_shown_without_secrets(url: str, shown: str) -> None:
    """A URL is shown without all that stands before its last @, in lists and in reprs too."""
    assert redact_url(url) == shown
    assert "p@" not in repr(
        resolve_settings(Connection("hub", url=url, user="u", password="p@"), {})
    )


def test_a_context_in_the_repository_is_refused(tmp_path: Path) -> None:
    """No context is read from the repository of the files that name it, nor through a link."""
    repository = tmp_path / "repo"
    (repository / ".git").mkdir(parents=True)
    (repository / "deploy").mkdir()
    inside, outside = repository / "ctx.json", tmp_path / "ctx.json"
    for path in (inside, outside):
        path.write_text(
            json.dumps({"url": "nats://evil", "password": "file:///etc/x", "user": "x"})
        )
    (repository / "link.json").symlink_to(outside)
    (tmp_path / "back.json").symlink_to(inside)
    for path in (
        inside,
        repository / "deploy/../ctx.json",
        repository / "link.json",
        tmp_path / "back.json",
    ):
        connection = Connection("hub", context=str(path), folder=repository / "deploy")
        with pytest.raises(ConnectError, match="is in the repository of the files that name it"):
            resolve_settings(connection, {"HOME": str(tmp_path)})
    with pytest.raises(ConnectError, match="cannot read /etc/x"):
        resolve_settings(
            Connection("hub", context=str(outside), folder=repository / "deploy"),
            {"HOME": str(tmp_path)},
        )


def test_servers_that_are_allowed() -> None:
    """With JSPLAN_ALLOWED_SERVERS each server of a connection is one of them, by name and port."""
    environ = {"JSPLAN_ALLOWED_SERVERS": "hub.example, 10.0.0.1:4333"}
    for url in ("nats://HUB.example:9", "tls://hub.example", "10.0.0.1:4333", "ws://10.0.0.1:4333"):
        assert resolve_settings(Connection("hub", url=url), environ).url == url
    for url in (
        "10.0.0.1",
        "nats://evil",
        "hub.example,evil",
        "nats://hub.example@evil",
        "nats://hub.example.evil",
        "ws://hub.example:80@evil:4333",
    ):
        with pytest.raises(ConnectError, match="which JSPLAN_ALLOWED_SERVERS does not allow"):
            resolve_settings(Connection("hub", url=url), environ)
    with pytest.raises(ConnectError, match="nats://evil"):
        resolve_settings(Connection("hub"), environ | {"NATS_URL": "nats://evil"})
