"""Resolves the settings and account of a connection: of files, a `nats` context, `NATS_*`.

Reads the files of credentials and keys that they name. Asks no server.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from jsplan.config.model import Connection
from jsplan.config.secret_fields import is_content
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.context_files import Reference, read_context, read_selected_context
from jsplan.secrets import redact_url
from jsplan.units import SECOND

_JWT: Final = re.compile(rb"BEGIN NATS USER JWT-+\s+(\S+)")
_SEED: Final = re.compile(rb"BEGIN USER NKEY SEED-+\s+(\S+)")
_SEED_LINE: Final = re.compile(rb"^\s*(SU\S*)\s*$", re.MULTILINE)
DEFAULT_URL = "nats://127.0.0.1:4222"
DEFAULT_PORT: Final = 4222
#: The environment variable with the servers that a workspace may name: `HOST` or `HOST:PORT`.
ALLOWED_SERVERS: Final = "JSPLAN_ALLOWED_SERVERS"
#: Settings that log in. A token may stand beside another one of them.
_LOGINS: Final = frozenset({"user", "creds", "nkey", "jwt", "token"})


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Settings of one connection. `shown` is the URL without secrets; `timeout` is seconds.

    `creds`, `nkey`, `ca`, `cert` and `key_file` are paths. `jwt` and `seed` are credentials that a
    context has itself: a JWT alone is a bearer token, a seed alone is an nkey.
    """

    key: str
    url: str = field(repr=False)
    shown: str = ""
    user: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    creds: str | None = None
    nkey: str | None = None
    jwt: str | None = field(default=None, repr=False)
    seed: str | None = field(default=None, repr=False)
    ca: str | None = None
    cert: str | None = None
    key_file: str | None = None
    tls_first: bool = False
    inbox_prefix: str | None = None
    operator_key: str | None = None
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
    ConnectError for a context that is missing, unreadable or part of the repository, and for a
    server that is not allowed.
    """
    if connection.url is not None:
        settings = _from_files(connection)
    elif connection.context is not None:
        context = read_context(connection.context, environ, connection.folder)
        settings = _merge(context, _from_files(connection))
    else:
        settings = _merge(
            read_selected_context(environ), _from_environment(environ), _from_files(connection)
        )
    _ask_nsc(settings, environ)
    _read_references(settings, environ)
    _require_paths(connection.key, settings)
    _require_pairs(connection.key, settings)
    url = settings.pop("url", None) or DEFAULT_URL
    timeout = connection.timeout / SECOND if connection.timeout else 5.0
    resolved = ConnectionSettings(
        key=connection.key, url=url, shown=redact_url(url), timeout=timeout, **settings
    )
    _require_allowed_servers(resolved, environ)
    return resolved


def _require_allowed_servers(settings: ConnectionSettings, environ: Mapping[str, str]) -> None:
    """Raise ConnectError for a server that `ALLOWED_SERVERS` does not name, if it is set.

    Files of a pull request name servers, and secrets of the job that plans it. Servers that an
    allowed one announces, as those of its cluster, are allowed too.
    """
    allowed = [each.strip().lower() for each in environ.get(ALLOWED_SERVERS, "").split(",")]
    for server in settings.servers if any(allowed) else ():
        url = urlsplit(server)
        host = (url.hostname or "").lower()
        if host not in allowed and f"{host}:{url.port or DEFAULT_PORT}" not in allowed:
            raise ConnectError(
                f"connection {settings.key} leads to {redact_url(server)}, which {ALLOWED_SERVERS} "
                "does not allow; nothing was sent",
                hint=f"Correct the URL, or add HOST or HOST:PORT to {ALLOWED_SERVERS} where this "
                "job is defined, not in the workspace.",
            )


def _merge(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all layers. A later one with a login replaces that of an earlier."""
    merged: dict[str, Any] = {}
    for layer in layers:
        if _LOGINS & layer.keys():
            kept = {"password"} if "user" in layer else set()
            replaced = (_LOGINS | {"password", "seed"}) - kept
            merged = {name: value for name, value in merged.items() if name not in replaced}
        merged |= layer
    return merged


def _ask_nsc(settings: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Fill in what `nsc` knows, where it is missing: the creds file and the URL."""
    asked: Reference | None = settings.pop("nsc", None)
    creds = settings.get("creds")
    if asked is None and isinstance(creds, Reference) and creds.scheme == "nsc":
        asked = creds
        del settings["creds"]
    has_login = bool((_LOGINS - {"token"}) & settings.keys())
    if asked is None or ("url" in settings and has_login):
        return
    profile = asked.read_profile(environ)
    if not has_login:
        settings["creds"] = profile.require_creds(asked.what)
    if profile.url:
        settings.setdefault("url", profile.url)


def _read_references(settings: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Replace references by their values: content of files becomes `jwt` and `seed`."""
    for name, value in list(settings.items()):
        if not isinstance(value, Reference):
            continue
        if name not in ("creds", "nkey"):
            settings[name] = value.read_text(environ)
            continue
        content = value.read(environ)
        del settings[name]
        try:
            if name == "creds":
                settings["jwt"], settings["seed"] = parse_creds(content)
            else:
                settings["seed"] = parse_seed(content)
        except ValueError as error:
            raise ConnectError(
                f"{value.what}: what {value.scheme}: leads to {error}",
                hint="It must be the content of such a file.",
            ) from None


def _require_pairs(key: str, settings: Mapping[str, Any]) -> None:
    """Raise ConnectError for one half of a pair, which would be dropped."""
    for one, other in (("password", "user"), ("cert", "key_file"), ("key_file", "cert")):
        if settings.get(one) and not settings.get(other):
            raise ConnectError(
                f"connection {key}: its settings have a {one.removesuffix('_file')}"
                f" and no {other.removesuffix('_file')}",
                hint="Add the other one, in the files, the nats context or NATS_* variables.",
            )


def _with_scheme(url: str) -> str:
    scheme, mark, rest = url.partition("://")
    return f"{scheme.lower()}://{rest}" if mark else f"nats://{url}"


def _require_paths(key: str, settings: Mapping[str, Any]) -> None:
    """Raise ConnectError for content where a path is expected, without showing the content."""
    for name in ("creds", "nkey", "ca", "cert", "key_file", "operator_key"):
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
        "operator_key": _path_text(connection.operator_key),
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


# --- the account of a connection ------------------------------------------------------------------


def resolve_accounts(
    connections: Mapping[str, Connection], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the account of each connection: `account:`, or the public key in its user JWT."""
    found = {}
    for key, connection in connections.items():
        name = connection.account
        if name is None:
            try:
                name = _find_account(resolve_settings(connection, environ))
            except ConnectError:
                name = None
        if name:
            found[key] = name
    return found


def _find_account(settings: ConnectionSettings) -> str | None:
    return (
        read_account(Path(settings.creds)) if settings.creds else parse_account(settings.jwt or "")
    )


def read_account(creds: Path) -> str | None:
    """Return the public key of the account that issued a creds file, or None if unknown."""
    try:
        return parse_account(parse_creds(read_regular(creds, MEGABYTE))[0])
    except (OSError, ValueError):
        return None


def parse_account(jwt: str) -> str | None:
    """Return the public key of the account that issued a user JWT, or None if unknown."""
    claims = decode_claims(jwt) or {}
    nats = claims.get("nats")
    issuer = (nats.get("issuer_account") if isinstance(nats, dict) else None) or claims.get("iss")
    return str(issuer) if issuer else None


def decode_claims(jwt: str) -> dict[str, Any] | None:
    """Return the claims of a JWT, or None if it is none. Its signature is not checked."""
    try:
        payload = jwt.split(".")[1]
        claims = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return None
    return claims if isinstance(claims, dict) else None


def parse_creds(content: bytes) -> tuple[str, str]:
    """Return the user JWT and the seed. Raises ValueError, which says what is missing."""
    jwt, seed = _JWT.search(content), _SEED.search(content)
    if jwt is None or seed is None:
        raise ValueError("holds no user JWT with its seed")
    return jwt[1].decode(errors="replace"), seed[1].decode(errors="replace")


def parse_seed(content: bytes) -> str:
    """Return the seed of a user: a line of its own. Raises ValueError."""
    seed = _SEED_LINE.search(content)
    if seed is None:
        raise ValueError("holds no seed of a user")
    return seed[1].decode(errors="replace")
