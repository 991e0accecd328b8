"""Reads the contexts of the `nats` CLI: which keys they have, and what each value means.

`CONTEXT_KEYS` is the table of the keys. No key is dropped in silence. Values may be elsewhere, as
`env://NAME` says.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.config.parsing import parse_subject_prefix, url_problem
from jsplan.disk import MEGABYTE, expand_user, find_repository, is_file, read_regular
from jsplan.errors import ConnectError

#: The schemes as the nats CLI has them, and where each takes the value from.
SCHEMES: Final[dict[str, str]] = {
    "file": "`file:///PATH`: the content of that file",
    "env": "`env://NAME`: the environment variable `NAME`, which must not be empty",
    "data": "`data:;base64,TEXT`: `TEXT`, decoded",
    "op": "`op://VAULT/ITEM/FIELD`: what `op read` prints (the CLI of 1Password)",
    "nsc": "`nsc://OPERATOR/ACCOUNT/USER`: the creds file that `nsc generate profile` names",
}
#: What a message about a wrong value of a context ends with.
CONTEXT_HINT: Final = "See: nats context edit"
#: Seconds for `nsc` and `op`, which may ask the user.
PROGRAM_TIMEOUT: Final = 60
#: A scheme has two characters at least: one is a drive of Windows.
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|([A-Za-z_]\w*))")


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


def scheme_of(value: str) -> str:
    """Return the scheme of a value in lower case, or an empty text."""
    found = _SCHEME.match(value)
    return found[1].lower() if found else ""


def expand_path(value: str, what: str, environ: Mapping[str, str]) -> str:
    """Replace `$NAME`, `${NAME}`, `~` and `file://`. Raises ConnectError for an unset variable."""

    def from_environment(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        if name not in environ:
            raise ConnectError(
                f"{what}: the environment variable {name} is not set",
                hint=f"Set {name}, or write the path without it.",
            )
        return environ[name]

    path = _VARIABLE.sub(from_environment, value)
    if scheme_of(path) == "file":
        path = path.partition(":")[2].removeprefix("//")
    if path == "~" or path.startswith("~/"):
        return environ["HOME"] + path[1:] if environ.get("HOME") else str(expand_user(path))
    return path


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that is elsewhere. `what` names its key, context and file in messages."""

    what: str
    text: str = field(repr=False)

    @property
    def scheme(self) -> str:
        """One of `SCHEMES`."""
        return scheme_of(self.text)

    def read(self, environ: Mapping[str, str]) -> bytes:
        """Return the value. Raises ConnectError, which never shows any of it."""
        rest = self.text.partition(":")[2].removeprefix("//")
        if self.scheme == "env":
            return self._read_variable(rest, environ)
        if self.scheme == "data":
            return self._decode(rest)
        if self.scheme == "op":
            return self._run(environ, "op", "read", self.text)
        if self.scheme == "nsc":
            return self._read_file(self.read_profile(environ).require_creds(self.what))
        return self._read_file(expand_path(self.text, self.what, environ))

    def read_text(self, environ: Mapping[str, str]) -> str:
        """Return the value without line ends behind it. Raises ConnectError."""
        try:
            return self.read(environ).decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConnectError(f"{self.what} is not text", hint=CONTEXT_HINT) from None

    def read_profile(self, environ: Mapping[str, str]) -> NscProfile:
        """Ask `nsc` for the creds file and the servers of a user. Raises ConnectError."""
        answer = self._run(environ, "nsc", "generate", "profile", self.text)
        try:
            profile: Any = orjson.loads(answer)
            operator = profile.get("operator") or {}
            creds, service = profile.get("user_creds"), operator.get("service") or []
            urls = [service] if isinstance(service, str) else service
            url = ",".join(urls)
        except (ValueError, TypeError, AttributeError):
            raise ConnectError(
                f"{self.what}: the answer of nsc is not a profile",
                hint="Try: nsc generate profile nsc://OPERATOR/ACCOUNT/USER",
            ) from None
        return NscProfile(creds if isinstance(creds, str) else "", url)

    def _read_variable(self, name: str, environ: Mapping[str, str]) -> bytes:
        if not environ.get(name):
            state = "is empty" if name in environ else "is not set"
            raise ConnectError(
                f"{self.what}: the environment variable {name} {state}",
                hint=f"Set {name} where jsplan runs.",
            )
        return environ[name].encode(errors="surrogateescape")

    def _decode(self, rest: str) -> bytes:
        kind, _, payload = rest.partition(",")
        if "base64" in (part.strip() for part in kind.split(";")):
            with contextlib.suppress(binascii.Error):
                return base64.b64decode(payload, validate=True)
        raise ConnectError(
            f"{self.what} is not a data: reference in base64",
            hint="Write data:;base64,TEXT, with TEXT from: base64 -w0 FILE",
        )

    def _read_file(self, path: str) -> bytes:
        try:
            return read_regular(expand_user(path), MEGABYTE)
        except OSError as error:
            raise ConnectError(
                f"{self.what}: cannot read {path}: {error.strerror}", hint=CONTEXT_HINT
            ) from None

    def _run(self, environ: Mapping[str, str], name: str, *arguments: str) -> bytes:
        """Return the output of a program, which is not part of any message."""
        program = shutil.which(name, path=environ.get("PATH", ""))
        if program is None:
            raise ConnectError(
                f"{self.what} needs the program {name}, which is not on the PATH",
                hint=f"Install {name}, or name a file in the context or the connection.",
            )
        try:
            done = subprocess.run(
                [program, *arguments],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PROGRAM_TIMEOUT,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise ConnectError(
                f"{self.what}: {name} did not answer within {PROGRAM_TIMEOUT} s",
                hint=f"Does {name} wait for a login? Log in first.",
            ) from None
        except OSError as error:
            raise ConnectError(
                f"{self.what}: cannot run {program}: {error.strerror}",
                hint=f"Install {name} again.",
            ) from None
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().rpartition("\n")[2][:200]
            raise ConnectError(
                f"{self.what}: {name} failed: {reason or f'exit code {done.returncode}'}",
                hint=f"Run it yourself: {name} {' '.join(arguments)}",
            )
        return done.stdout


class NscProfile(Struct, frozen=True):
    """The creds file of a user and the URLs of its operator, as `nsc` knows them, or empty."""

    creds: str
    url: str

    def require_creds(self, what: str) -> str:
        """Return the creds file. Raises ConnectError if there is none; `what` names the key."""
        if not self.creds:
            raise ConnectError(
                f"{what}: nsc names no creds file for this user",
                hint="Write one with: nsc generate creds",
            )
        return self.creds
