"""Reads which account a connection belongs to, from the files. Asks no server."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import orjson

from jsplan.config.model import Connection
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import ConnectError
from jsplan.jetstream.contexts import resolve_settings


def resolve_accounts(
    connections: Mapping[str, Connection], environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the account of each connection: `account:`, or the public key in its creds file."""
    found = {}
    for key, connection in connections.items():
        name = connection.account
        if name is None:
            try:
                creds = resolve_settings(connection, environ).creds
            except ConnectError:
                creds = None
            name = read_account(Path(creds)) if creds else None
        if name:
            found[key] = name
    return found


def read_account(creds: Path) -> str | None:
    """Return the public key of the account that issued a creds file, or None if unknown."""
    try:
        token = next(
            line
            for line in read_regular(creds, MEGABYTE).decode().splitlines()
            if line.startswith("eyJ")
        )
        payload = token.split(".")[1]
        claims = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        issuer = (claims.get("nats") or {}).get("issuer_account") or claims.get("iss")
    except (OSError, StopIteration, IndexError, ValueError, binascii.Error, AttributeError):
        return None
    return str(issuer) if issuer else None
