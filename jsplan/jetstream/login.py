"""Log in to a server: the same code for the connections of nats-py and of backfills."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import ParseResult, SplitResult, unquote

from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import ConnectionSettings, parse_creds, parse_seed

if TYPE_CHECKING:
    import nkeys  # type: ignore[import-untyped]  # it has no stubs

#: A bundle of all public certificate authorities has about 0.2 MiB.
MAX_FILE_BYTES: Final = 4 * MEGABYTE


def login_fields(
    target: ConnectionSettings, url: SplitResult | ParseResult, nonce: str
) -> dict[str, str]:
    """Return the fields of CONNECT that log in at `url`. They answer the challenge `nonce`.

    A user or a token in the URL replaces those of the settings, as in nats.go. Creds and nkey files
    are read each time, since they may have been renewed. Raises ConnectError.
    """
    fields = {"user": target.user, "pass": target.password, "auth_token": target.token}
    if url.username is not None:
        user = unquote(url.username)
        fields = (
            {"auth_token": user}
            if url.password is None
            else {"user": user, "pass": unquote(url.password)}
        )
    jwt, seed = _read_keys(target)
    fields["jwt"] = jwt
    if seed is not None:
        pair = _key_pair(target, seed)
        fields["sig"] = base64.urlsafe_b64encode(pair.sign(nonce.encode())).rstrip(b"=").decode()
        if jwt is None:
            fields["nkey"] = pair.public_key.decode()
    return {name: value for name, value in fields.items() if value is not None}


def check_files(target: ConnectionSettings) -> None:
    """Raise ConnectError if a credentials or TLS file cannot be used. Sends nothing."""
    _, seed = _read_keys(target)
    if seed is not None:
        _key_pair(target, seed)
    for what, path in (("ca", target.ca), ("cert", target.cert), ("key", target.key_file)):
        if path is not None:
            _read_file(target, what, path)


def _read_keys(target: ConnectionSettings) -> tuple[str | None, str | None]:
    """Return the user JWT and the seed, of a file or of the settings."""
    what, path = ("creds", target.creds) if target.creds else ("nkey", target.nkey)
    if path is None:
        return target.jwt, target.seed
    content = _read_file(target, what, path)
    try:
        return parse_creds(content) if what == "creds" else (None, parse_seed(content))
    except ValueError as error:
        hint = "It has one line, the seed, which begins with SU."
        if what == "creds":
            hint = "Write one with: nsc generate creds"
        raise ConnectError(
            f"connection {target.key}: its {what} file {_shown_path(target, path)} {error}",
            hint=hint,
        ) from None


def _read_file(target: ConnectionSettings, what: str, path: str) -> bytes:
    try:
        return read_regular(Path(path), MAX_FILE_BYTES)
    except OSError as error:
        raise ConnectError(
            f"connection {target.key}:"
            f" cannot read its {what} file {_shown_path(target, path)}: {error.strerror}",
            hint="Paths in the files are relative to the file that names them,"
            " those in a nats context to the current folder.",
        ) from None


def _shown_path(target: ConnectionSettings, path: str) -> str:
    return "that its settings name" if path in (target.password, target.token) else path


def _key_pair(target: ConnectionSettings, seed: str) -> nkeys.KeyPair:
    # Slow to import, and most connections log in without a key.
    import nkeys  # noqa: PLC0415

    try:
        return nkeys.from_seed(bytearray(seed.encode()))
    except (ValueError, nkeys.NkeysError) as error:
        reason = str(error) or "the seed is invalid"
        raise ConnectError(
            f"connection {target.key}: cannot use its credentials: {reason}",
            hint="Check the creds or nkey file of the connection, or the seed of its context.",
        ) from None
