"""JWTs of NATS, version 2: users and accounts, signed by a key that stays in its file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson
from msgspec import Struct

from jsplan.diagnostics import quote_shell
from jsplan.disk import MEGABYTE, read_regular
from jsplan.errors import UsageError
from jsplan.resources.account import user_claims

_HEADER: Final = {"typ": "JWT", "alg": "ed25519-nkey"}
#: The owner of a key, and how its seed begins.
ACCOUNT: Final = ("an account", "SA")
OPERATOR: Final = ("an operator", "SO")


class SigningKey(Struct, frozen=True):
    """A key pair that signs. `public` is its name."""

    public: str
    _pair: Any

    def sign(self, claims: Mapping[str, Any], issued_at: int) -> str:
        """Return the JWT of these claims, issued by the key. `issued_at` is seconds since 1970."""
        signed = dict(claims) | {"iat": issued_at, "iss": self.public}
        signed.pop("jti", None)
        digest = hashlib.new("sha512_256", orjson.dumps(signed)).digest()
        signed["jti"] = base64.b32encode(digest).decode().rstrip("=")
        text = f"{_encode(orjson.dumps(_HEADER))}.{_encode(orjson.dumps(signed))}"
        return f"{text}.{_encode(self._pair.sign(text.encode()))}"


def read_signing_key(path: Path | str, owner: tuple[str, str]) -> SigningKey:
    """Read the seed of a key in a file. Raises UsageError for a file without such a seed."""
    import nkeys  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, and it has no stubs

    noun, letters = owner
    path = Path(path)
    try:
        text = read_regular(path, MEGABYTE)
    except OSError as error:
        raise UsageError(f"cannot read the signing key {path}: {error.strerror}") from None
    found = re.search(rb"^\s*(%s[A-Z2-7]{56})\s*$" % letters.encode(), text, re.MULTILINE)
    if found is None:
        raise UsageError(
            f"{quote_shell(path)} holds no seed of {noun}",
            hint=f"It has one line, which begins with {letters}. nsc keeps it in its keys folder.",
        )
    pair = nkeys.from_seed(bytearray(found[1]))
    return SigningKey(pair.public_key.decode(), pair)


def sign_user(
    key: SigningKey,
    name: str,
    public: str,
    account: str,
    allowed: tuple[Sequence[str], Sequence[str]] | None,
    issued_at: int,
) -> str:
    """Return the JWT of a user, which may publish and subscribe to what is `allowed`.

    None is for a user of a role: the account says what it may do. `public` is its key and `account`
    that of its account, which `key` is or is a signing key of. `issued_at` is seconds since 1970.
    """
    nats: dict[str, Any] = {"type": "user", "version": 2}
    if allowed is not None:
        nats |= user_claims(*allowed)
    if key.public != account:
        nats["issuer_account"] = account
    return key.sign({"name": name, "sub": public, "nats": nats}, issued_at)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
