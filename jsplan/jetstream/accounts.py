"""Reads which account a connection belongs to, from the files. Asks no server."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from jsplan.config.model import Connection
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import ConnectionSettings, resolve_settings
from jsplan.jetstream.key_files import parse_creds


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
