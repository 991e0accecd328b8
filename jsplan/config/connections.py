"""`connections:` as the files have them, without contexts and NATS_* variables."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from jsplan import units
from jsplan.config import parsing
from jsplan.config.findings import Findings
from jsplan.config.interpolate import escape
from jsplan.config.model import Connection, Tls
from jsplan.config.node import Node, source_range
from jsplan.config.secret_fields import (
    CONNECTION_SECRETS,
    conceal_login,
    mark_secret,
    url_problem,
)
from jsplan.config.sections import Reading, Values
from jsplan.config.tables.connectivity import CONNECTION

_SENT_TEXTS: Final = ("url", "context", "user", "password", "token", "inbox_prefix")
_REFERENCE: Final = re.compile(r"\$\{env\.[^{}]*\}")
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
#: The connection of a workspace that declares none.
IMPLIED_CONNECTION: Final = "default"


def read_connections(
    section: Node | None, environ: Mapping[str, str], findings: Findings
) -> dict[str, Connection]:
    """Read the declared connections by key; an empty one is filled from the environment later."""
    out = {}
    for key, node in parsing.read_mapping(section, "`connections`", findings):
        assert section is not None
        if not NAME_PATTERN.fullmatch(key):
            text = f'"{key}" is not a name for a connection'
            findings.error("JS131", section.key_place(key), text, "Use letters, digits, - and _.")
        elif node.value is None:
            out[key] = Connection(key, range=source_range(section.key_place(key)))
        elif (found := _read_connection(key, node, environ, findings)) is not None:
            out[key] = found
        out.setdefault(key, Connection(key))  # domains may name one that has a finding
    return out


def _read_connection(
    key: str, node: Node, environ: Mapping[str, str], findings: Findings
) -> Connection | None:
    mark_secret(node.get("password"), node.get("token"))
    conceal_login(node.get("url"))
    values = CONNECTION.read(node, Reading(findings, environ), f"connection {key}")
    if values is None:
        return None
    _check_login(key, node, findings)
    _check_url(key, node.get("url"), findings)
    found = Connection(
        key,
        **values | {"tls": _make_tls(node.get("tls"), values["tls"], findings)},
        range=source_range(node.place),
        folder=node.place[0].path.parent.absolute(),
    )
    return dataclasses.replace(found, declared=_declare(node, found))


def _make_tls(node: Node | None, values: Values | None, findings: Findings) -> Tls | None:
    if node is None or values is None:
        return None
    if node.is_given("cert") != node.is_given("key"):
        findings.error(
            "JS120", node, "`tls` needs both `cert` and `key`, or neither", "Add the other one."
        )
    return Tls(**values)


def _declare(node: Node, found: Connection) -> str:
    """Return the JSON of a connection that other machines receive."""
    texts: dict[str, Any] = {
        name: _template(node.get(name)) or escape(getattr(found, name))
        for name in _SENT_TEXTS
        if getattr(found, name) is not None
    }
    secrets = [_REFERENCE.fullmatch(texts.get(name, "${env.}")) for name in CONNECTION_SECRETS]
    if not all(secrets) or "@" in _REFERENCE.sub("", texts.get("url", "")):
        return ""
    if found.timeout is not None:
        texts["timeout"] = _template(node.get("timeout")) or units.format_duration(found.timeout)
    texts |= _declare_paths(node, ("creds", "nkey"))
    if found.tls is not None and (tls := node.get("tls")) is not None:
        texts["tls"] = _declare_paths(tls, ("ca", "cert", "key"))
        if found.tls.handshake_first:
            texts["tls"]["handshake_first"] = True
    return json.dumps(texts)


def _declare_paths(node: Node, names: tuple[str, ...]) -> dict[str, str]:
    """Return the paths of files; below HOME or a variable they are those of each machine."""
    folder, found = Path(escape(str(node.place[0].path.parent.absolute()))), {}
    for name in names:
        if (item := node.get(name)) is not None and item.value is not None:
            text = _template(item) or escape(str(item.value))
            found[name] = text if text.startswith(("~/", "${env.")) else str(folder / text)
    return found


def _template(node: Node | None) -> str:
    return node.template if node is not None else ""


def _check_login(key: str, node: Node, findings: Findings) -> None:
    if node.is_given("url") and node.is_given("context"):
        hint = "Keep one; a context holds its own URL and credentials."
        findings.error("JS120", node, f"connection {key} names both a url and a context", hint)
    logins = [name for name in ("user", "token", "creds", "nkey") if node.is_given(name)]
    if len(logins) > 1:
        text = f"connection {key} names {len(logins)} ways to log in: {', '.join(logins)}"
        findings.error("JS120", node, text, "Keep one.")
    if node.is_given("password") and not node.is_given("user"):
        text = f"connection {key} has a password and no user"
        findings.error("JS120", node, text, "Add `user:`, or use `token:`.")


def _check_url(key: str, node: Node | None, findings: Findings) -> None:
    """Report a URL that cannot be one before any connection attempt; without what precedes `@`."""
    for part in node.value.split(",") if node is not None and isinstance(node.value, str) else ():
        url = part.strip()
        if node is not None and (
            what := url_problem(node, url if "://" in url else f"nats://{url}", _SCHEMES)
        ):
            text = f"`url` of connection {key}: {what}"
            findings.error("JS130", node, text, "Write nats://HOST:PORT, or tls://, ws://, wss://.")
