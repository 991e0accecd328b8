"""Reads the contexts of the `nats` CLI: which keys they have, and what each value means.

`context_keys.CONTEXT_KEYS` is the table of the keys. No key is dropped in silence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from jsplan.config.parsing import parse_subject_prefix, url_problem
from jsplan.disk import MEGABYTE, expand_user, find_repository, is_file, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.context_keys import (
    CONTEXT_KEYS,
    SCHEMES_OF_USE,
    ContextKey,
    Use,
)
from jsplan.jetstream.secret_references import (
    CONTEXT_HINT,
    SCHEMES,
    Reference,
    expand_path,
    scheme_of,
)

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
