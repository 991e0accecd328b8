"""Resolves connection settings from the files, a context of the `nats` CLI, or `NATS_*`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from jsplan.config.model import Connection
from jsplan.config.secret_fields import is_content
from jsplan.disk import MEGABYTE, expand_user, is_file, read_regular
from jsplan.errors import ConnectError
from jsplan.secrets import redact_url
from jsplan.units import SECOND

DEFAULT_URL = "nats://127.0.0.1:4222"


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of one connection. `shown` is the URL without secrets; `timeout` is seconds."""

    key: str
    url: str = field(repr=False)
    shown: str = ""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = None
    nkey: str | None = None
    ca: str | None = None
    cert: str | None = None
    key_file: str | None = None
    tls_first: bool = False
    inbox_prefix: str | None = None
    timeout: float = 5.0

    @property
    def servers(self) -> tuple[str, ...]:
        """The URL of each server, with a lower-case scheme, by default `nats`."""
        return tuple(_with_scheme(part.strip()) for part in self.url.split(","))

    @property
    def must_encrypt(self) -> bool:
        """True if credentials may be sent only with TLS: one URL or one `tls` setting is enough."""
        tls = self.ca or self.cert or self.key_file or self.tls_first
        return bool(tls) or any(url.startswith(("tls://", "wss://")) for url in self.servers)


def resolve_settings(connection: Connection, environ: Mapping[str, str]) -> ConnectionSettings:
    """Resolve the settings of one connection.

    `NATS_*` and the selected context apply only if it has neither `url` nor `context`. Raises
    ConnectError for a context that is missing or unreadable.
    """
    if connection.url is not None:
        settings = _from_files(connection)
    elif connection.context is not None:
        settings = _read_context(connection.context, environ) | _from_files(connection)
    else:
        settings = _selected_context(environ) | _from_environment(environ) | _from_files(connection)
    _require_paths(connection.key, settings)
    url = settings.pop("url", None) or DEFAULT_URL
    timeout = connection.timeout / SECOND if connection.timeout else 5.0
    return ConnectionSettings(
        key=connection.key, url=url, shown=redact_url(url), timeout=timeout, **settings
    )


def _with_scheme(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme.lower()}://{rest}" if mark else f"nats://{url}"


def _require_paths(key: str, settings: Mapping[str, Any]) -> None:
    """Raise ConnectError for content where a path is expected, without showing the content."""
    for name in ("creds", "nkey", "ca", "cert", "key_file"):
        if is_content(settings.get(name) or ""):
            raise ConnectError(
                f"connection {key}: its {name.removesuffix('_file')} is the content of a file,"
                " not a path",
                hint="Put the content into a file that only you can read, and give its path."
                " That applies to NATS_CREDS and similar variables too.",
            )


def _from_files(connection: Connection) -> dict[str, Any]:
    tls = connection.tls
    settings = {
        "url": connection.url,
        "user": connection.user,
        "password": connection.password,
        "token": connection.token,
        "creds": _path_text(connection.creds),
        "nkey": _path_text(connection.nkey),
        "inbox_prefix": connection.inbox_prefix,
        "ca": _path_text(tls.ca) if tls else None,
        "cert": _path_text(tls.cert) if tls else None,
        "key_file": _path_text(tls.key) if tls else None,
        "tls_first": (tls.handshake_first or None) if tls else None,
    }
    return {name: value for name, value in settings.items() if value is not None}


def _path_text(path: Path | None) -> str | None:
    return str(path) if path is not None else None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    names = {
        "NATS_URL": "url",
        "NATS_USER": "user",
        "NATS_PASSWORD": "password",
        "NATS_CREDS": "creds",
        "NATS_NKEY": "nkey",
        "NATS_CA": "ca",
        "NATS_CERT": "cert",
        "NATS_KEY": "key_file",
    }
    return {name: environ[variable] for variable, name in names.items() if environ.get(variable)}


def _config_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (
        Path(home) / "nats" if home else expand_user(environ.get("HOME", "~")) / ".config" / "nats"
    )


def _selected_context(environ: Mapping[str, str]) -> dict[str, Any]:
    name = environ.get("NATS_CONTEXT", "").strip()
    selected = _config_home(environ) / "context.txt"
    if not name and is_file(selected):
        name = read_regular(selected, MEGABYTE).decode(errors="replace").strip()
    return _read_context(name, environ) if name else {}


def _read_context(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Read a context of the `nats` CLI. Its JetStream domain settings are ignored."""
    folder = _config_home(environ) / "context"
    if not name.isprintable() or Path(name).name != name:
        raise ConnectError(
            f"{name!r} is not a name of a nats context",
            hint="Write the name alone, as nats context ls shows it.",
        )
    path = folder / f"{name}.json"
    try:
        raw = orjson.loads(read_regular(path, MEGABYTE))  # refuses deep nesting with a ValueError
    except OSError as error:
        known = sorted(p.stem for p in folder.glob("*.json"))
        hint = f"The contexts in {folder} are: {', '.join(known) or 'none'}. See: nats context ls"
        raise ConnectError(
            f'cannot read the nats context "{name}": {path}: {error.strerror}', hint=hint
        ) from None
    except ValueError as error:
        raise ConnectError(
            f'the nats context "{name}" is not JSON: {path}: {error}', hint="See: nats context edit"
        ) from None
    return _context_settings(raw, name, path)


def _context_settings(raw: Any, name: str, path: Path) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise ConnectError(
            f'the nats context "{name}" is not a JSON object: {path}', hint="See: nats context edit"
        )
    if raw.get("nsc"):
        raise ConnectError(
            f'the nats context "{name}" takes its credentials from nsc, which jsplan cannot ask',
            hint="Write a creds file (nsc generate creds)"
            " and name it in the context or the connection.",
        )
    names = {
        "url": "url",
        "user": "user",
        "password": "password",
        "token": "token",
        "creds": "creds",
        "nkey": "nkey",
        "ca": "ca",
        "cert": "cert",
        "key": "key_file",
        "inbox_prefix": "inbox_prefix",
        "tls_first": "tls_first",
    }
    for theirs in names:
        if raw.get(theirs) and not isinstance(raw[theirs], bool if theirs == "tls_first" else str):
            kind = "true or false" if theirs == "tls_first" else "text"
            raise ConnectError(
                f'`{theirs}` of the nats context "{name}" is not {kind}: {path}',
                hint="See: nats context edit",
            )
    settings = {ours: raw[theirs] for theirs, ours in names.items() if raw.get(theirs)}
    for file in ("creds", "nkey", "ca", "cert", "key_file"):
        if file in settings:
            settings[file] = str(expand_user(settings[file]))
    return settings
