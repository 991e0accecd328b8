"""Operators, accounts and users as `nsc` makes them: nkeys, JWTs, creds files.

Everything is made in memory. `Operator.configuration` is what `nsc generate config --mem-resolver`
writes, so that an embedded server takes it as `extra`. `login` answers the challenge of the server.
Accounts with passwords are in `account_sharing`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import nkeys  # type: ignore[import-untyped]  # it has no stubs

if TYPE_CHECKING:
    from pathlib import Path

Kind = Literal["service", "stream"]

#: Limits of an account as nsc makes it, with unlimited JetStream (`--js-disk-storage -1 --js-mem-storage -1`).
UNLIMITED = {
    "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1,
    "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1,
}  # fmt: skip
NO_JETSTREAM = UNLIMITED | {"mem_storage": 0, "disk_storage": 0, "streams": 0, "consumer": 0}


class Keys:
    """A key pair of one role: `public` is its name, `seed` is secret."""

    def __init__(self, role: int) -> None:
        self.seed = nkeys.encode_seed(os.urandom(32), role)
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public: str = self._pair.public_key.decode()

    def signed(self, claims: dict[str, Any]) -> str:
        """Return a JWT over the claims, issued by these keys."""
        claims = {"iss": self.public, "iat": 1_700_000_000} | claims
        claims["jti"] = (
            base64.b32encode(hashlib.sha256(json.dumps(claims).encode()).digest())
            .decode()
            .rstrip("=")
        )
        text = f"{_encoded({'typ': 'JWT', 'alg': 'ed25519-nkey'})}.{_encoded(claims)}"
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _encoded(document: dict[str, Any]) -> str:
    return _base64(json.dumps(document, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


@dataclass
class Account:
    """One account, with `limits` as in its claims.

    `limits` are `UNLIMITED`, `NO_JETSTREAM`, or have `tiered_limits`. `exports` and `imports` are
    claims, as `export` and `take` append them.
    """

    name: str
    limits: dict[str, Any] = field(default_factory=lambda: dict(UNLIMITED))
    exports: list[dict[str, Any]] = field(default_factory=list)
    imports: list[dict[str, Any]] = field(default_factory=list)
    keys: Keys = field(default_factory=lambda: Keys(nkeys.PREFIX_BYTE_ACCOUNT))

    @property
    def public(self) -> str:
        """The public key of the account, which servers use as its name."""
        return self.keys.public

    def export(
        self,
        kind: Kind,
        subject: str,
        *,
        response_type: str | None = None,
        token_position: int | None = None,
    ) -> None:
        """Export a subject to other accounts.

        `response_type` is `Stream` or `Chunked`. Without it a service gives one answer.
        """
        row: dict[str, Any] = {"name": subject, "subject": subject, "type": kind}
        row |= {"response_type": response_type} if response_type else {}
        row |= {"account_token_position": token_position} if token_position else {}
        self.exports.append(row)

    def take(self, kind: Kind, origin: Account, subject: str, local: str | None = None) -> None:
        """Import a subject of `origin`, under the same subject or as `local`.

        In `local` a wildcard is written as `$1`, or alike.
        """
        row: dict[str, Any] = {
            "name": subject,
            "subject": subject,
            "account": origin.public,
            "type": kind,
        }
        self.imports.append(row | ({"local_subject": local} if local else {}))

    def claims(self) -> dict[str, Any]:
        """Return the claims that the operator signs."""
        nats = {
            "limits": self.limits,
            "default_permissions": {"pub": {}, "sub": {}},
            "type": "account",
            "version": 2,
        }
        return {
            "name": self.name,
            "sub": self.public,
            "nats": nats | {"exports": self.exports, "imports": self.imports},
        }

    def creds(self, folder: Path, user: str, **permissions: Any) -> Path:
        """Write `USER.creds` for a new user; `permissions` are claims such as `pub=…`."""
        keys = Keys(nkeys.PREFIX_BYTE_USER)
        nats = {
            "pub": {},
            "sub": {},
            "subs": -1,
            "data": -1,
            "payload": -1,
            "type": "user",
            "version": 2,
        } | permissions
        token = self.keys.signed({"name": user, "sub": keys.public, "nats": nats})
        path = folder / f"{user}.creds"
        path.write_text(format_creds(token, keys), encoding="utf-8")
        return path


def format_creds(token: str, keys: Keys) -> str:
    """Return the content of a creds file of a user."""
    return _CREDS.format(token=token, seed=keys.seed.decode())


_CREDS = """\
-----BEGIN NATS USER JWT-----
{token}
------END NATS USER JWT------

************************* IMPORTANT *************************
NKEY Seed printed below can be used to sign and prove identity.
NKEYs are sensitive and should be treated as secrets.

-----BEGIN USER NKEY SEED-----
{seed}
------END USER NKEY SEED------

*************************************************************
"""


class Operator:
    """An operator with its system account `SYS` and others; `account` adds one."""

    def __init__(self, name: str = "O") -> None:
        self.name = name
        self.keys = Keys(nkeys.PREFIX_BYTE_OPERATOR)
        self.signing = Keys(nkeys.PREFIX_BYTE_OPERATOR)
        self.system = Account("SYS", dict(NO_JETSTREAM))
        self.accounts: dict[str, Account] = {"SYS": self.system}

    def account(self, name: str, limits: dict[str, Any] | None = None) -> Account:
        """Add an account, with unlimited JetStream unless `limits` are given."""
        self.accounts[name] = Account(name, dict(limits or UNLIMITED))
        return self.accounts[name]

    def configuration(self, resolver: str = "MEMORY") -> str:
        """Return the server configuration with the current accounts in a resolver."""
        nats = {"type": "operator", "version": 2, "system_account": self.system.public}
        nats |= {"signing_keys": [self.signing.public]}
        operator = self.keys.signed({"name": self.name, "sub": self.keys.public, "nats": nats})
        preload = "".join(
            f"    {a.public}: {self.keys.signed(a.claims())}\n" for a in self.accounts.values()
        )
        return f"operator: {operator}\nsystem_account: {self.system.public}\nresolver: {resolver}\nresolver_preload: {{\n{preload}}}\n"

    def resolving_configuration(self, folder: Path) -> str:
        """Return that of a server that takes changed accounts, and keeps them in a folder."""
        return self.configuration(f'{{type: full, dir: "{folder}", allow_delete: true}}')


def login(creds: Path, nonce: str) -> dict[str, str]:
    """Return the fields of CONNECT that log in the user of a creds file."""
    words = [
        line
        for line in creds.read_text("utf-8").splitlines()
        if line and not line.startswith(("-", "*"))
    ]
    token, seed = words[0], words[-1]
    return {
        "jwt": token,
        "sig": _base64(nkeys.from_seed(bytearray(seed.encode())).sign(nonce.encode())),
    }
