"""Messages for connections that fail: the errors of nats-py, ssl and sockets."""

from __future__ import annotations

import asyncio
import errno
import re
import ssl
from typing import Final

import nats.errors

from jsplan.diagnostics import quote_shell
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import ConnectionSettings

#: The text of errors about a server without TLS, where TLS is required.
NO_TLS: Final = "the server does not offer TLS on this port"


def no_tls_error(target: ConnectionSettings) -> ConnectError:
    """Return the error for a server without TLS where TLS is required. Nothing was sent."""
    return ConnectError(
        f"connection {target.key} ({target.shown}): {NO_TLS}. Nothing was sent to it.",
        hint="Enable tls in the server's configuration."
        " To send credentials and messages unencrypted, write nats:// and no `tls`.",
    )


def denied_subject(text: str, subject: str) -> str:
    """Return the name under which a server denies publishing to `subject`, else an empty text.

    `text` is the server's message, which nats-py converts to lower case. A server checks and names
    what it maps the prefix of its own domain to: `$JS.API` for the API, no prefix for `$KV` and
    `$O`.
    """
    if "permissions violation for publish" not in text.lower():
        return ""
    rest = subject.partition(".API.")[2]
    names = (subject, f"$JS.API.{rest}", rest)
    return next((name for name in names if name and f'"{name.lower()}"' in text.lower()), "")


_CALL_FAILED = re.compile(rf"\[Errno {errno.ECONNREFUSED}\] Connect call failed \([^()]*\)")


def denies_inbox(text: str) -> bool:
    """Return True if a server denies the inbox subject of answers, the one with a wildcard."""
    return (
        re.search(r'permissions violation for subscription to "[^"]+\.\*"', text.lower())
        is not None
    )


def build_connect_error(
    target: ConnectionSettings, error: BaseException, seen: list[str]
) -> ConnectError:
    """Map an error of nats-py, ssl or the socket layer during connecting to a ConnectError."""
    texts = [
        text
        for text in dict.fromkeys([*seen, describe_error(error)])
        if text.removeprefix("nats:").strip() and "no servers available" not in text
    ]
    text = "; ".join(texts) or describe_error(error)
    text = _CALL_FAILED.sub("connection refused", text)
    where, url = f"connection {target.key} ({target.shown})", quote_shell(target.shown)
    if NO_TLS in text:
        return no_tls_error(target)
    if (
        "authorization" in text.lower()
        or "authentication" in text.lower()
        or isinstance(error, nats.errors.AuthorizationError)
    ):
        return ConnectError(
            f"{where}: the server refused the credentials",
            hint="Check user, password, creds, nkey or token of the connection or of its context.",
            is_refused=True,
        )
    if isinstance(error, ssl.SSLError) or "ssl" in text.lower() or "certificate" in text.lower():
        return ConnectError(
            f"{where}: TLS failed: {text.strip()}",
            hint="Check tls.ca, tls.cert and tls.key of the connection, and the host in the URL.",
        )
    return ConnectError(
        f"{where} cannot be reached: {text.strip()}",
        hint=f"Is the server running, and is the URL right? Try: nats --server {url} rtt",
        is_offline=True,
    )


def describe_error(error: BaseException) -> str:
    """Return the text of a foreign error, or its type if it has none."""
    if isinstance(error, TimeoutError | asyncio.TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__
