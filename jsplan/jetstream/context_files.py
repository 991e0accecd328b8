"""Reads the contexts of the `nats` CLI: which keys they have, and what each value means.

`CONTEXT_KEYS` is the table of the keys. No key is dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.config.parsing import parse_subject_prefix, url_problem
from jsplan.disk import MEGABYTE, expand_user, find_repository, is_file, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.secret_references import (
    CONTEXT_HINT,
    SCHEMES,
    Reference,
    expand_path,
    scheme_of,
)


class Use(StrEnum):
    """The use that jsplan makes of a key, in the words of messages and of the page."""

    TEXT = "text"
    FLAG = "true or false"
    VALUE = "text, or a reference"
    PATH = "a path"
    KEYS = "a path, or a reference"
    UNUSED = "not used"
    REFUSED = "an error that names it"


class ContextKey(Struct, frozen=True):
    """One key. `setting` is the field of ConnectionSettings that it fills.

    `meaning` of a refused key is what to do instead.
    """

    name: str
    use: Use
    meaning: str
    setting: str = ""


_NO_PROXY: Final = "Open a tunnel, such as `ssh -L`, and name its address in `url`."
_NO_STORE: Final = (
    "Export the certificate and its key as files, and name them in `cert`, `key` and `ca`."
)
CONTEXT_KEYS: Final = (
    ContextKey("url", Use.TEXT, "servers, separated by commas; none: nats://127.0.0.1:4222", "url"),
    ContextKey("user", Use.TEXT, "user name", "user"),
    ContextKey("password", Use.VALUE, "password of `user`", "password"),
    ContextKey("token", Use.VALUE, "token, alone or beside other credentials", "token"),
    ContextKey("creds", Use.KEYS, "creds file: a user JWT with its seed", "creds"),
    ContextKey("nkey", Use.KEYS, "file with the seed of a user", "nkey"),
    ContextKey("user_jwt", Use.VALUE, "user JWT; without `user_seed` a bearer token", "jwt"),
    ContextKey("user_seed", Use.VALUE, "seed for `user_jwt`", "seed"),
    ContextKey(
        "nsc", Use.TEXT, "`nsc://…`: fills in `creds` and `url` where they are missing", "nsc"
    ),
    ContextKey("ca", Use.PATH, "certificate authority of the server", "ca"),
    ContextKey("cert", Use.PATH, "client certificate; it needs `key`", "cert"),
    ContextKey("key", Use.PATH, "key of `cert`", "key_file"),
    ContextKey("tls_first", Use.FLAG, "TLS before the server's greeting", "tls_first"),
    ContextKey("inbox_prefix", Use.TEXT, "first part of the subjects of answers", "inbox_prefix"),
    ContextKey("name", Use.UNUSED, "for people: the name is that of the file"),
    ContextKey("description", Use.UNUSED, "for people"),
    ContextKey("color_scheme", Use.UNUSED, "colours of tables of the nats CLI"),
    ContextKey("jetstream_domain", Use.UNUSED, "a domain of the workspace has `js_domain:`"),
    ContextKey("jetstream_api_prefix", Use.UNUSED, "a domain of the workspace has `api_prefix:`"),
    ContextKey("jetstream_event_prefix", Use.UNUSED, "jsplan needs no prefix of advisories"),
    ContextKey("socks_proxy", Use.REFUSED, _NO_PROXY),
    ContextKey("windows_cert_store", Use.REFUSED, _NO_STORE),
    ContextKey("windows_cert_match_by", Use.REFUSED, _NO_STORE),
    ContextKey("windows_cert_match", Use.REFUSED, _NO_STORE),
    ContextKey("windows_ca_certs_match", Use.REFUSED, _NO_STORE),
)
#: Schemes of the references that a value may be.
SCHEMES_OF_USE: Final = {
    Use.VALUE: tuple(scheme for scheme in SCHEMES if scheme != "nsc"),
    Use.KEYS: tuple(SCHEMES),
    Use.PATH: ("file",),
}


# --- the files ------------------------------------------------------------------------------------

_URL_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_KEYS: Final = {key.name: key for key in CONTEXT_KEYS}
#: Ways to log in, of which a context has one. A token may stand beside each, `nsc` beside creds.
_LOGINS: Final = ("user", "creds", "nkey", "user_jwt")


def read_selected_context(environ: Mapping[str, str]) -> dict[str, Any]:
    """Read the context of `NATS_CONTEXT`, or the selected one; empty without either."""
    name = environ.get("NATS_CONTEXT", "").strip()
    selected = _config_home(environ) / "context.txt"
    if not name and is_file(selected):
        name = read_regular(selected, MEGABYTE).decode(errors="replace").strip()
    return read_context(name, environ) if name else {}


def read_context(
    name: str, environ: Mapping[str, str], folder: Path | None = None
) -> dict[str, Any]:
    """Read a context: its name, or an absolute path that ends with `.json`.

    `folder` has the file that names it; no context is read from the repository of that folder.
    The result has fields of ConnectionSettings; a value that is elsewhere is a `Reference`, and
    `nsc` is one too. Raises ConnectError, which names the context, its file and the key.
    """
    path = _context_path(name, environ)
    if folder is not None and _is_below(path, find_repository(folder)):
        raise ConnectError(
            f"the nats context {path} is in the repository of the files that name it",
            hint="A context chooses files and programs whose secrets are sent, and each change of "
            "the repository could choose any of them. Keep it in another folder, or write its "
            "settings under the connection.",
        )
    try:
        raw = orjson.loads(read_regular(path, MEGABYTE))  # refuses deep nesting with a ValueError
    except OSError as error:
        known = sorted(p.stem for p in path.parent.glob("*.json"))
        hint = (
            f"The contexts in {path.parent} are: {', '.join(known) or 'none'}. See: nats context ls"
        )
        raise ConnectError(
            f'cannot read the nats context "{name}": {path}: {error.strerror}', hint=hint
        ) from None
    except ValueError as error:
        raise ConnectError(
            f'the nats context "{name}" is not JSON: {path}: {error}', hint=CONTEXT_HINT
        ) from None
    if not isinstance(raw, dict):
        raise ConnectError(
            f'the nats context "{name}" is not a JSON object: {path}', hint=CONTEXT_HINT
        )
    return _Context(name, path, environ).read(raw)


def _config_home(environ: Mapping[str, str]) -> Path:
    home = environ.get("XDG_CONFIG_HOME")
    return (
        Path(home) / "nats" if home else expand_user(environ.get("HOME", "~")) / ".config" / "nats"
    )


def _context_path(name: str, environ: Mapping[str, str]) -> Path:
    if name.isprintable() and name.endswith(".json") and name.startswith(("/", "~/")):
        return Path(expand_path(name, f'the nats context "{name}"', environ))
    if not name.isprintable() or Path(name).name != name:
        raise ConnectError(
            f"{name!r} is not a name of a nats context",
            hint="Write the name alone, as nats context ls shows it,"
            " or an absolute path that ends with .json.",
        )
    return _config_home(environ) / "context" / f"{name}.json"


def _is_below(path: Path, folder: Path) -> bool:
    """Check whether a path or what it leads to by links is below a folder."""
    return any(
        each.is_relative_to(folder) for each in (Path(os.path.normpath(path)), path.resolve())
    )


class _Context:
    """One context while it is read."""

    def __init__(self, name: str, path: Path, environ: Mapping[str, str]) -> None:
        self._of = f'of the nats context "{name}" ({path})'
        self._environ = environ

    def read(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings. Raises ConnectError."""
        # Go reads keys in any case, and an empty value as none.
        given = {
            str(name).lower(): value
            for name, value in raw.items()
            if value is not None and value is not False and value not in ("", [], {})
        }
        settings = {}
        for name, value in given.items():
            key = _KEYS.get(name)
            if key is None:
                raise ConnectError(
                    f"jsplan does not know the key `{name}` {self._of}",
                    hint="Remove it, if the connection does not need it.",
                )
            if key.use is Use.REFUSED:
                raise ConnectError(f"jsplan cannot use `{name}` {self._of}", hint=key.meaning)
            if key.use is not Use.UNUSED:
                settings[key.setting] = self._read_value(key, value)
        self._check_login(given)
        return settings

    def _read_value(self, key: ContextKey, value: Any) -> Any:
        what = f"`{key.name}` {self._of}"
        if key.use is Use.FLAG:
            if value is not True:
                raise ConnectError(f"{what} is not true or false", hint=CONTEXT_HINT)
            return value
        if not isinstance(value, str):
            raise ConnectError(f"{what} is not text", hint=CONTEXT_HINT)
        if key.use is Use.VALUE:
            # As in the nats CLI: a value with another scheme, or none, is the secret itself.
            if scheme_of(value) not in SCHEMES:
                return value
            if scheme_of(value) not in SCHEMES_OF_USE[Use.VALUE]:
                raise self._wrong_scheme(key, what, scheme_of(value))
            return Reference(what, value)
        if key.use is Use.PATH or key.use is Use.KEYS:
            return self._read_path(key, what, value)
        if key.name == "nsc":
            return Reference(what, value if scheme_of(value) == "nsc" else f"nsc://{value}")
        if key.name == "url":
            self._check_url(what, value)
        if key.name == "inbox_prefix":
            try:
                return parse_subject_prefix(value)
            except ValueError as error:
                raise ConnectError(f"{what}: {error}", hint=CONTEXT_HINT) from None
        return value

    def _read_path(self, key: ContextKey, what: str, value: str) -> str | Reference:
        if scheme_of(value) == "data" and key.use is Use.KEYS:
            return Reference(what, value)
        path = expand_path(value, what, self._environ)
        scheme = scheme_of(path)
        if not scheme:
            return path
        if scheme in SCHEMES_OF_USE[key.use]:
            return Reference(what, path)
        raise self._wrong_scheme(key, what, scheme)

    def _wrong_scheme(self, key: ContextKey, what: str, scheme: str) -> ConnectError:
        allowed = ", ".join(SCHEMES_OF_USE[key.use])
        return ConnectError(
            f"{what} cannot be a reference with the scheme {scheme}",
            hint=f"It is {key.use}. These schemes are possible: {allowed}.",
        )

    def _check_url(self, what: str, value: str) -> None:
        for part in (each.strip() for each in value.split(",")):
            scheme, mark, rest = part.partition("://")
            url = f"{scheme.lower()}://{rest}" if mark else f"nats://{part}"
            if problem := url_problem(url, _URL_SCHEMES):
                raise ConnectError(f"{what}: {problem}", hint=CONTEXT_HINT)

    def _check_login(self, given: Mapping[str, Any]) -> None:
        logins = [name for name in _LOGINS if name in given]
        if len(logins) > 1:
            raise ConnectError(
                f"`{'`, `'.join(logins)}` {self._of} are {len(logins)} ways to log in",
                hint="Keep one.",
            )
        if "user_seed" in given and "user_jwt" not in given:
            raise ConnectError(
                f"`user_seed` {self._of} stands without `user_jwt`",
                hint="Add `user_jwt`, or name a file with the seed in `nkey`.",
            )
