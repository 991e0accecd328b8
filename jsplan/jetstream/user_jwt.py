"""JWTs of users, with the permissions of an application, signed by a key of its account.

The key signs here and is stored nowhere. The layout is version 2 of the NATS JWTs.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from jsplan.diagnostics import quote_shell
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import UsageError

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
_ACCOUNT_SEED: Final = re.compile(rb"^\s*(SA[A-Z2-7]{56})\s*$", re.MULTILINE)
_UNLIMITED: Final = -1


def sign_user(
    name: str,
    public: str,
    account: str,
    allowed: tuple[Sequence[str], Sequence[str]],
    key_file: Path,
    issued_at: int,
) -> str:
    """Return the JWT of a user, which may publish and subscribe to what is `allowed`.

    `public` is its key and `account` that of its account. `key_file` has the seed of the account,
    or of one of its signing keys. `issued_at` is seconds since 1970. Raises UsageError for a file
    without such a seed.
    """
    import nkeys  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, and it has no stubs

    pair = nkeys.from_seed(bytearray(_read_seed(key_file)))
    issuer = pair.public_key.decode()
    publish, subscribe = (_permission(subjects) for subjects in allowed)
    nats: dict[str, Any] = {
        "pub": publish,
        "sub": subscribe,
        "subs": _UNLIMITED,
        "data": _UNLIMITED,
        "payload": _UNLIMITED,
        "type": "user",
        "version": 2,
    }
    if issuer != account:
        nats["issuer_account"] = account
    claims = {"iat": issued_at, "iss": issuer, "name": name, "sub": public, "nats": nats}
    digest = hashlib.new("sha512_256", orjson.dumps(claims)).digest()
    claims["jti"] = base64.b32encode(digest).decode().rstrip("=")
    text = f"{_encode(orjson.dumps(_HEADER))}.{_encode(orjson.dumps(claims))}"
    return f"{text}.{_encode(pair.sign(text.encode()))}"


def _permission(subjects: Sequence[str]) -> dict[str, list[str]]:
    """Return the claim: a server takes an empty list for everything."""
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def _read_seed(path: Path) -> bytes:
    try:
        found = _ACCOUNT_SEED.search(read_regular(path, MEGABYTE))
    except OSError as error:
        raise UsageError(f"cannot read the signing key {path}: {error.strerror}") from None
    if found is None:
        raise UsageError(
            f"{quote_shell(path)} holds no seed of an account",
            hint="It has one line, which begins with SA. nsc keeps it in its folder of keys.",
        )
    return found[1]


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
