"""A secret from `${env.X}` is in no output, no file and no log."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.process import jsplan
from tests.support.raw import Raw

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server

SECRET = "gEhEiM4711"
JWT = f"-----BEGIN NATS USER JWT-----\neyJ{SECRET}\n------END NATS USER JWT------\n-----BEGIN USER NKEY SEED-----\nSU{SECRET}\n"
PEM = f"-----BEGIN CERTIFICATE-----\nMII{SECRET}//x\n-----END CERTIFICATE-----\n"
CLOSED = "nats://127.0.0.1:1"
PATHS = ("creds", "nkey", "tls.ca", "tls.cert", "tls.key")
#: Where a secret may stand, and the forms that it takes there.
FIELDS: list[tuple[str, str]] = [
    ("connections.main.url", f"nats://{SECRET}:x{SECRET}@127.0.0.1:1"),
    ("connections.main.url", f"nats://{SECRET}@127.0.0.1:1"),
    ("connections.main.url", f"{SECRET}://127.0.0.1"),
    ("connections.main.url", f"nats://127.0.0.1:{SECRET}"),
    *[(f"connections.main.{name}", SECRET) for name in ("password", "token")],
    ("connections.main.context", JWT),
    ("connections.main.timeout", SECRET),
    ("connections.main.inbox_prefix", f"{SECRET} x.*"),
    *[
        (f"connections.main.{name}", value)
        for name in PATHS
        for value in (JWT, PEM, "S" + "A" * 57)
    ],
    ("backend.kv.lock_ttl", SECRET),
    ("drift.sinks.webhook.url", SECRET),
    ("drift.sinks.webhook.headers.Authorization", f"Bearer {SECRET}"),
]
COMMANDS = (
    ["validate"], ["validate", "--json"], ["plan"], ["plan", "--json"], ["lint"], ["lint", "--json"], ["lint", "--format", "sarif"],
    ["graph"], ["graph", "--json"], ["graph", "--format", "svg"], ["status"], ["drift", "--json"], ["access"], ["state", "list"],
    ["apply", "-y", "--log-format", "json"],
)  # fmt: skip


def with_secret(where: str, url: str) -> dict[str, Any]:
    """Write a workspace with `${env.SECRET}` at one place."""
    document: dict[str, Any] = {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {"main": {"url": url}},
        "domains": {"hub": {"connection": "main"}},
        "streams": [{"name": "SECRETS", "subjects": ["secrets.>"], "max_msgs": 5}],
    }
    *parents, last = where.split(".")
    node: Any = document
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = "${env.SECRET}"
    if "drift" in document:
        document["drift"]["sinks"] = [document["drift"]["sinks"]]
    connection = document["connections"]["main"]
    if "password" in connection:
        connection["user"] = "u"
    if "context" in connection:
        del connection["url"]
    if "headers" in where:
        document["drift"]["sinks"][0]["webhook"]["url"] = "http://127.0.0.1:1"
    if where == "drift.sinks.domain":
        document["drift"]["sinks"][0]["subject"] = "ops.drift"
    for one, other in (("cert", "key"), ("key", "cert")):
        if one in connection.get("tls", {}):
            connection["tls"].setdefault(other, "other.pem")
    if where == "backend.kv.domain":
        document["backend"]["kv"]["bucket"] = "STATE"
    return document


def assert_hidden(text: str) -> None:
    """Check that the text holds no part of the secret, in capitals or not."""
    assert SECRET.lower() not in text.lower(), text
    assert "A" * 20 not in text, text


@pytest.mark.parametrize(("where", "value"), FIELDS)
def test_no_output_has_a_value_of_the_environment(
    where: str,
    value: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No command without a server prints or logs a value of the environment."""
    monkeypatch.setenv("SECRET", value)
    (tmp_path / "jsplan.yaml").write_text(json.dumps(with_secret(where, CLOSED)), encoding="utf-8")
    for words in COMMANDS:
        code, out, err = jsplan(tmp_path, "-vv", *words)
        printed = out + err
        assert code != 64, printed
        assert_hidden(printed)
        assert "bug in jsplan" not in printed, printed
        if code and words == ["validate"]:
            assert (
                "env.SECRET" in printed
                or "secret value" in printed
                or "its scheme" in printed
                or "its port" in printed
            ), printed
            break
    for file in tmp_path.rglob("*"):
        assert_hidden(file.read_text("utf-8") if file.is_file() else "")


def test_only_the_owner_reads_written_files(server: Server, tmp_path: Path) -> None:
    """Files that commands write can be read by their owner alone, whatever the umask is."""
    (tmp_path / "jsplan.yaml").write_text(
        json.dumps(
            {
                "jsplan": 1,
                "workspace": "shop",
                "connections": {"m": {"url": server.url}},
                "domains": {"m": {"js_domain": None}},
            }
        ),
        encoding="utf-8",
    )
    (tmp_path / "old.json").touch(0o640)
    before = os.umask(0)
    try:
        into = ("--json-into", str(tmp_path / "a.json"))
        ended = jsplan(tmp_path, "plan", "-o", str(tmp_path / "a.plan"), *into)
        jsplan(tmp_path, "plan", "--json-into", str(tmp_path / "old.json"))
    finally:
        os.umask(before)
    assert ended.code == 0
    modes = {
        path.name: oct(path.stat().st_mode & 0o777)
        for path in tmp_path.glob("*.*")
        if path.name != "jsplan.yaml"
    }
    assert modes == {"a.plan": "0o600", "a.json": "0o600", "old.json": "0o640"}


def test_no_document_has_a_value_of_the_environment(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a server, no document of any command and no state holds a value of the environment."""
    port = server.url.rpartition(":")[2]
    monkeypatch.setenv("URL", f"nats://{SECRET}:x{SECRET}@127.0.0.1:{port}")
    for name in ("BUCKET", "INBOX", "ACCOUNT", "SUBJECT", "FILE"):
        monkeypatch.setenv(name, f"{name}-{SECRET}")
    connection = {"url": "${env.URL}", "inbox_prefix": "${env.INBOX}", "account": "${env.ACCOUNT}"}
    document = {
        "jsplan": 1,
        "workspace": "shop",
        "connections": {"main": connection},
        "domains": {
            "hub": {"connection": "main", "js_domain": None},
            "gone": {"connection": "main", "js_domain": "gone"},
        },
        "backend": {"kv": {"bucket": "${env.BUCKET}", "domain": "hub"}},
        "defaults": {"domain": "hub"},
        "drift": {
            "sinks": [{"subject": "${env.SUBJECT}", "domain": "hub"}, {"file": "${env.FILE}"}]
        },
        "streams": [{"name": "SECRETS", "subjects": ["secrets.>"], "max_msgs": 5}],
    }
    (tmp_path / "jsplan.yaml").write_text(json.dumps(document), encoding="utf-8")
    file = str(tmp_path / "a.plan")
    for words in (
        ["plan", "-o", file],
        *(["show", file, "--format", name] for name in ("text", "json", "markdown", "html")),
        ["plan", "--rehearse"],
        ["apply", "-y"],
        *(["drift", "--format", name] for name in ("text", "json", "html", "junit", "github")),
        ["status"],
        ["status", "--json"],
        ["state", "list"],
        ["state", "show", "hub/stream/SECRETS"],
        ["history"],
        ["access"],
        ["domains", "discover"],
        ["graph", "--format", "dot"],
        ["graph", "--format", "mermaid"],
        ["import", "--all", "--json"],
        ["backup", "hub/stream/SECRETS", str(tmp_path / "backup")],
        ["destroy", "-y"],
        ["show"],
    ):
        code, out, err = jsplan(tmp_path, "-vv", *words)
        printed = out + err
        assert code != 64, printed
        if words[0] == "status":  # lists every bucket that the server has
            printed = printed.replace(f"hub/kv/BUCKET-{SECRET}", "")
        assert_hidden(printed)
        assert "bug in jsplan" not in printed, printed
    for path in tmp_path.rglob("*"):
        assert_hidden(path.read_bytes().decode("latin-1") if path.is_file() else "")
    with Raw(server.url) as raw:
        kept = raw.api_ok(
            f"$JS.API.STREAM.MSG.GET.KV_BUCKET-{SECRET}",
            {"last_by_subj": f"$KV.BUCKET-{SECRET}.shop"},
        )
    assert_hidden(base64.b64decode(kept["message"]["data"]).decode("latin-1"))
