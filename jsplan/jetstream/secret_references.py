"""References of a nats context to values that are elsewhere, such as `env://NAME`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.disk import MEGABYTE, expand_user, read_regular
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
