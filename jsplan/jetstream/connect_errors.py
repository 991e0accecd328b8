"""What can be wrong with a connection, in words: its files before anything is sent, and every foreign error that it may end with."""

from __future__ import annotations

import asyncio
import re
import ssl
from pathlib import Path
from typing import Final

import nats.errors
from nats.aio.client import RawCredentials

from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import ConnectionSettings

#: A bundle of all certificate authorities of the world has a fifth of a mebibyte.
MAX_FILE_BYTES: Final = 4 * MEGABYTE
#: What a file must have in it, what it lacks otherwise, and what to do. nats-py looks for the JWT in a file without one for ever.
_REQUIRED_CONTENT: Final = {
    "creds": (
        (b"BEGIN NATS USER JWT", b"BEGIN USER NKEY SEED"),
        "no user JWT with its seed",
        "Write one with: nsc generate creds",
    ),
    "nkey": ((b"SU",), "no seed of a user", "It has one line, the seed, which begins with SU."),
}

#: What nats-py's errors say of a server that would take credentials in the clear, where that is not wanted.
NO_TLS: Final = "the server does not offer TLS on this port"


def no_tls_error(target: ConnectionSettings) -> ConnectError:
    """Refuse a server without TLS for a connection that must be encrypted. Nothing has been sent to it."""
    return ConnectError(
        f"connection {target.key} ({target.shown}): {NO_TLS}. Nothing was sent to it.",
        hint="Enable tls in the server's configuration. Or write nats:// and no `tls`, if credentials and messages may travel unencrypted.",
    )


def check_files(target: ConnectionSettings) -> None:
    """Raise ConnectError for a credentials or TLS file that cannot be read, before anything is sent."""
    for what, path in (
        ("creds", target.creds),
        ("nkey", target.nkey),
        ("ca", target.ca),
        ("cert", target.cert),
        ("key", target.key_file),
    ):
        if path is None:
            continue
        shown = "that its settings name" if path in (target.password, target.token) else path
        try:
            content = read_regular(Path(path), MAX_FILE_BYTES)
        except OSError as error:
            message = (
                f"connection {target.key}: cannot read its {what} file {shown}: {error.strerror}"
            )
            raise ConnectError(
                message, hint="Paths in the files are relative to the file that names them."
            ) from None
        marks, lacks, hint = _REQUIRED_CONTENT.get(what, ((), "", ""))
        if not all(mark in content for mark in marks):
            raise ConnectError(
                f"connection {target.key}: its {what} file {shown} holds {lacks}", hint=hint
            )


def load_credentials(path: str | None) -> str | RawCredentials | None:
    """What nats-py takes for a creds file: its path, or its text where that has the line ends of Windows, which nats-py would take for
    a part of the key. Raises OSError.
    """
    text = Path(path).read_bytes() if path else b""
    return (
        RawCredentials(text.replace(b"\r\n", b"\n").decode("utf-8", "replace"))
        if b"\r\n" in text
        else path
    )


def denied_subject(text: str, subject: str) -> str:
    """The name under which a server's message, which nats-py hands on in small letters, denies publishing to the subject; else nothing.

    A server checks, and names, the API of its own domain as `$JS.API`, however it was asked.
    """
    if "permissions violation for publish" not in text.lower():
        return ""
    own = f"$JS.API.{subject.partition('.API.')[2]}"
    return next((name for name in (subject, own) if f'"{name.lower()}"' in text.lower()), "")


def denies_inbox(text: str) -> bool:
    """Whether a server's message denies the subject on which all answers arrive. It ends in a wildcard; what else is heard does not."""
    return (
        re.search(r'permissions violation for subscription to "[^"]+\.\*"', text.lower())
        is not None
    )


def build_connect_error(
    target: ConnectionSettings, error: BaseException, seen: list[str]
) -> ConnectError:
    """What went wrong in words: every error of nats-py, ssl and the socket layer that connecting can end with."""
    told = [
        text
        for text in dict.fromkeys([*seen, describe_error(error)])
        if text.removeprefix("nats:").strip() and "no servers available" not in text
    ]
    text = "; ".join(told) or describe_error(error)
    where = f"connection {target.key} ({target.shown})"
    if NO_TLS in text:
        return no_tls_error(target)
    if isinstance(error, nats.errors.InvalidUserCredentialsError) or "nkeys:" in text:
        return ConnectError(
            f"{where}: cannot use its credentials: {text}",
            hint="Check the creds or nkey file of the connection.",
        )
    if (
        "authorization" in text.lower()
        or "authentication" in text.lower()
        or isinstance(error, nats.errors.AuthorizationError)
    ):
        return ConnectError(
            f"{where}: the server refused the credentials",
            hint="Check user, password, creds, nkey or token of the connection.",
        )
    if isinstance(error, ssl.SSLError) or "ssl" in text.lower() or "certificate" in text.lower():
        return ConnectError(
            f"{where}: TLS failed: {text.strip()}",
            hint="Check tls.ca, tls.cert and tls.key of the connection, and the host name in the URL.",
        )
    return ConnectError(
        f"{where} cannot be reached: {text.strip()}",
        hint="Is the server running, and is the URL right? Try: nats --server URL rtt",
        is_offline=True,
    )


def describe_error(error: BaseException) -> str:
    """What a foreign error says; its name if it says nothing."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
