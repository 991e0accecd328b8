"""Reads accounts: claims from the resolver of the servers, or files. Never writes.

A server with the `nats` resolver answers `$SYS.REQ.ACCOUNT.<key>.CLAIMS.LOOKUP` with the JWT of an
account, and with nothing for an unknown one (measured on 2.12 to 2.15). The resolver in memory does
not answer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from typing import Any, TypeVar

from jsplan.address import Address
from jsplan.config.model import AccountFiles
from jsplan.disk import display_path, read_regular
from jsplan.errors import ApiError, NoRespondersError
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.jetstream.answers import CLAIMS_LIST
from jsplan.jetstream.api import request_system
from jsplan.jetstream.contexts import decode_claims
from jsplan.jetstream.read_only import claims_lookup
from jsplan.resources.account import ACCOUNT, parse_claims
from jsplan.resources.account_file import MAX_BYTES, header_of, parse_file

T = TypeVar("T")


async def read_account(api: DomainApi, address: Address) -> LiveObject | None:
    """Read one account by its key in the files, else by its name; None if there is none.

    Raises ApiError.
    """
    operator = api.domain.accounts
    if isinstance(operator, AccountFiles):
        return _read_file(operator, address)
    assert operator is not None
    key = operator.keys.get(address.name)
    found = await _look_up(api, key) if key is not None else await _find_by_name(api, address.name)
    if found is None:
        return None
    token, claims = found
    digest = hashlib.sha256(token).hexdigest()
    return LiveObject(
        address,
        parse_claims(claims, operator.mark, operator.keys),
        str(claims["sub"]),
        {"revision": digest, "size": len(token), "bucket": str(claims["sub"])},
        content=token,
    )


def _read_file(files: AccountFiles, address: Address) -> LiveObject | None:
    """Read a file that jsplan wrote. Raises ApiError for any other file."""
    name, path = address.name, files.path(address.name)
    shown, header = display_path(path), header_of(name, files.workspace)
    try:
        content = read_regular(path, MAX_BYTES, root=files.root)
    except FileNotFoundError:
        return None
    except OSError as error:
        text = f"the file {shown} of account {name} cannot be read: {error.strerror}"
        raise ApiError(text, hint="Correct it, or its permissions.") from None
    text = content.decode("utf-8", "replace")
    if text.partition("\n")[0].rstrip() != header:
        hint = f"Rename it. To let jsplan replace what is in it, begin it with this line: {header}"
        raise ApiError(f"{shown} was not written for account {name} by this workspace", hint=hint)
    try:
        config = ACCOUNT.compact({"name": name, **parse_file(text)})
    except ValueError as error:
        hint = "Write it into the block that includes the file, and take it out of the file."
        raise ApiError(f"the file {shown} of account {name} {error}", hint=hint) from None
    state = {"revision": hashlib.sha256(content).hexdigest(), "size": len(content), "bucket": name}
    return LiveObject(address, config, name, state, content=content)


async def _look_up(api: DomainApi, key: str) -> tuple[bytes, dict[str, Any]] | None:
    token = await _ask(api, api.connection.request(claims_lookup(key), b""))
    if not token:
        return None
    claims = decode_claims(token.decode("ascii", "replace"))
    if claims is None or claims.get("sub") != key:
        raise ApiError(f"the claims of account {key} cannot be read")
    return token, claims


async def _find_by_name(api: DomainApi, name: str) -> tuple[bytes, dict[str, Any]] | None:
    """Find an account that has left the files, so that they no longer have its key."""
    answer = await _ask(api, request_system(api.connection, CLAIMS_LIST, CLAIMS_LIST, b""))
    for key in answer.get("data") or ():
        found = await _look_up(api, key)
        if found is not None and found[1].get("name") == name:
            return found
    return None


async def _ask(api: DomainApi, sent: Awaitable[T]) -> T:
    try:
        return await sent
    except NoRespondersError:
        raise ApiError(
            f"connection {api.domain.connection}: no server answers for accounts",
            hint="It must be a connection to the system account, and the servers need "
            "`resolver: {type: full}`. That of nsc in memory cannot be changed.",
        ) from None
