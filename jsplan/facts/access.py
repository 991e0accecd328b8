"""Checks of exports and imports between accounts, with requests that change nothing.

A service is called with a body that no server can read: the JetStream API answers with an error
(10025, or status 400), an acknowledgement or flow control with an unknown word is ignored, and the
owner's own connection receives it. A stream is tried on a subject of our own below the exported
one. Grants that cannot be tried without harm are only looked up, with the credentials of the system
account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any, Final, Literal

import orjson
from msgspec import Struct
from msgspec.structs import replace

from jsplan.config.model import Domain
from jsplan.documents.access import Status
from jsplan.errors import (
    OFFLINE_ERRORS,
    ApiError,
    ApiTimeoutError,
    JsplanError,
    NoRespondersError,
    NotPermittedError,
)
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.answers import ACCOUNT_INFO, USER_INFO
from jsplan.jetstream.api import request_system
from jsplan.jetstream.connection import Inbox, NatsConnection
from jsplan.resources.account import PUBLIC_KEY
from jsplan.subjects import is_literal, is_subset
from jsplan.topology.access import Grant, own_api_prefix

#: Seconds until an undelivered request counts as missing: interest takes time to cross a leafnode.
ANSWER_TIMEOUT: Final = 5.0
#: Seconds to wait for the first answer, and between two tries.
FIRST_WAIT: Final = 0.1
#: Seconds to wait for a request at the owner: longer than all tries together.
RECEIVE_TIMEOUT: Final = 3600.0
#: After a try without an answer, the next waits longer: up to the timeout of the connection.
WAIT_FACTOR: Final = 4
#: Fewest tries, however slow the machine is.
MIN_TRIES: Final = 10
#: The begin of a body that is no JSON and no acknowledgement.
INVALID_JSON: Final = b"{"
#: Requests that delete even with an invalid body: they are never tried.
DELETING_VERBS: Final = ("STREAM.DELETE.", "CONSUMER.DELETE.", "STREAM.PURGE.")


class GrantCheck(Struct, frozen=True):
    """The result of the check of one grant. `unanswered`: a request was taken, and not answered."""

    status: Status
    detail: str = ""
    unanswered: bool = False


async def check_grants(
    pool: Pool, domains: Mapping[str, Domain], grants: Iterable[Grant], system: str | None = None
) -> dict[Grant, GrantCheck]:
    """Check every grant, all at once. `system` is the key of a connection to the system account.

    The connections must be open. Raises ApiError when a connection is lost, ConnectError when that
    of `system` failed.
    """
    listed = list(grants)
    checks = await asyncio.gather(*(_try_grant(pool, domains, grant) for grant in listed))
    tried = dict(zip(listed, checks, strict=True))
    if system is None:
        return tried
    if system in pool.failures:
        raise pool.failures[system]
    accounts = await _read_accounts(pool, domains, listed, pool.connections[system])
    lookups = {
        grant: [
            _look_up(equivalent, check, accounts)
            for equivalent in _equivalent_grants(pool, domains, grant, system)
        ]
        for grant, check in tried.items()
    }
    return {
        grant: min(found, key=lambda lookup: _LACK_ORDER.index(lookup.lack)).check
        for grant, found in lookups.items()
    }


async def _try_grant(pool: Pool, domains: Mapping[str, Domain], grant: Grant) -> GrantCheck:
    owner, user = (
        pool.connections.get(domains[key].connection)
        for key in (grant.owner_domain, grant.user_domain)
    )
    if user is None:
        failure = pool.failures[domains[grant.user_domain].connection]
        return GrantCheck("unknown", f"account {grant.user} cannot be reached: {failure}")
    try:
        if grant.kind == "service":
            return await _try_service(owner, user, domains, grant)
        return await _try_stream(pool, owner, user, domains, grant)
    except NotPermittedError as error:
        return GrantCheck("unknown", str(error))


# --- services ------------------------------------------------------------------------------------


async def _try_service(
    owner: NatsConnection | None, user: NatsConnection, domains: Mapping[str, Domain], grant: Grant
) -> GrantCheck:
    domain = domains[grant.owner_domain]
    verb = grant.subject.removeprefix(f"{own_api_prefix(domain)}.")
    if verb.startswith(DELETING_VERBS):
        return GrantCheck("unknown", "not tried, since the request would delete")
    token = _new_token()
    sent = _fill_wildcards(grant.local_subject, token)
    received = _fill_wildcards(grant.subject, token)
    mapped = (
        "$JS.API." + received.removeprefix(f"{own_api_prefix(domain)}.")
        if verb != grant.subject
        else received
    )
    async with _open_inboxes(owner, {received, mapped}) as inboxes:
        try:
            await _request_until_received(user, sent, INVALID_JSON + token.encode(), inboxes)
        except NoRespondersError:
            no_responders = True
        except ApiTimeoutError:
            no_responders = False
        else:
            return GrantCheck("ok")
    is_api = verb != grant.subject
    if is_api and not no_responders:
        return GrantCheck(
            "unknown",
            f"no answer within {user.settings.timeout:g} s: the servers are slow, "
            "or only another client receives it",
            unanswered=True,
        )
    if owner is None and not is_api:
        return GrantCheck(
            "unknown",
            f"no client listens now, and account {grant.owner} cannot be reached to listen",
        )
    if not no_responders:
        return GrantCheck(
            "unknown",
            f"another client receives it, and the connection of {grant.owner_domain} does not",
        )
    return GrantCheck("missing", _not_delivered_text(grant))


async def _request_until_received(
    user: NatsConnection, sent: str, payload: bytes, inboxes: list[Inbox]
) -> None:
    """Send requests until one is answered, or its payload is received by an inbox.

    Raises NoRespondersError where the server has no responder for `ANSWER_TIMEOUT`, and
    ApiTimeoutError where a request is not answered within the timeout of the connection: only the
    first proves that a grant is missing. Raises NotPermittedError.
    """
    receivers = [asyncio.create_task(_receive(inbox, payload, sent)) for inbox in inboxes]
    loop = asyncio.get_running_loop()
    end, wait, tries = loop.time() + ANSWER_TIMEOUT, FIRST_WAIT, 0
    try:
        while True:
            tries += 1
            try:
                request = asyncio.create_task(user.request(sent, payload, wait))
                return await _wait_for_first(request, receivers)
            except NoRespondersError:
                if loop.time() >= end and tries >= MIN_TRIES:
                    raise
                await asyncio.sleep(FIRST_WAIT)
            except ApiTimeoutError:
                if wait >= user.settings.timeout:
                    raise
                wait = min(WAIT_FACTOR * wait, user.settings.timeout)
    finally:
        for receiver in receivers:
            receiver.cancel()
        await asyncio.gather(*receivers, return_exceptions=True)


async def _receive(inbox: Inbox, payload: bytes, sent: str) -> None:
    """Wait for this payload: other accounts may use the same subject."""
    while (await inbox.next(RECEIVE_TIMEOUT, sent)).data != payload:
        pass


async def _wait_for_first(
    request: asyncio.Task[bytes], receivers: list[asyncio.Task[None]]
) -> None:
    """Wait for the answer of the request or a receiver. Raises what the first of them raised."""
    try:
        done, _ = await asyncio.wait([*receivers, request], return_when=asyncio.FIRST_COMPLETED)
        await next(task for task in (*receivers, request) if task in done)
    finally:
        request.cancel()
        await asyncio.gather(request, return_exceptions=True)


@contextlib.asynccontextmanager
async def _open_inboxes(
    link: NatsConnection | None, subjects: set[str]
) -> AsyncIterator[list[Inbox]]:
    async with contextlib.AsyncExitStack() as stack:
        inboxes = (
            [
                await stack.enter_async_context(link.open_inbox(subject))
                for subject in sorted(subjects)
            ]
            if link is not None
            else []
        )
        if link is not None:
            await link.flush()
        yield inboxes


# --- streams -------------------------------------------------------------------------------------


async def _try_stream(
    pool: Pool,
    owner: NatsConnection | None,
    user: NatsConnection,
    domains: Mapping[str, Domain],
    grant: Grant,
) -> GrantCheck:
    if is_literal(grant.subject):
        return GrantCheck(
            "unknown", "not tried, since a consumer delivers there; --system-connection looks it up"
        )
    if owner is None:
        failure = pool.failures[domains[grant.owner_domain].connection]
        return GrantCheck("unknown", f"account {grant.owner} cannot be reached: {failure}")
    token = _new_token()
    sent = _fill_wildcards(grant.subject, token)
    received = _fill_wildcards(grant.local_subject, token)
    for key, subject in ((grant.owner_domain, sent), (grant.user_domain, received)):
        try:
            stored = await _find_storing_stream(pool, domains[key], subject)
        except ApiTimeoutError as error:
            return GrantCheck("unknown", f"not tried, since a stream may store it: {error}")
        if stored:
            return GrantCheck(
                "unknown", f"not tried, since stream {stored} in {key} would store it"
            )
    loop = asyncio.get_running_loop()
    end, tries = loop.time() + ANSWER_TIMEOUT, 0
    async with user.open_inbox(received) as inbox:
        await user.flush()
        while loop.time() < end or tries < MIN_TRIES:
            tries += 1
            await owner.publish(sent, b"")
            await owner.flush()
            await user.flush()  # after it, the server has delivered what it received
            with contextlib.suppress(ApiTimeoutError):
                await inbox.next(FIRST_WAIT, received)
                return GrantCheck("ok")
    return GrantCheck("missing", _not_delivered_text(grant))


def _not_delivered_text(grant: Grant) -> str:
    return (
        f"nothing comes through: {grant.owner} does not export it, "
        f"or {grant.user} does not import it"
    )


async def _find_storing_stream(pool: Pool, domain: Domain, subject: str) -> str | None:
    """Return a stream that would store the subject; None also where there is no JetStream.

    Raises ApiTimeoutError.
    """
    try:
        answer = await DomainApi(
            domain, pool.connections[domain.connection], read_only=True
        ).request("STREAM.NAMES", {"subject": subject})
    except ApiTimeoutError:
        raise
    except JsplanError:
        return None
    names = answer.get("streams") or []
    return str(names[0]) if names else None


def _new_token() -> str:
    return f"JSPLAN_PROBE_{os.urandom(6).hex()}"


def _fill_wildcards(subject: str, token: str) -> str:
    """Return a subject of our own that the pattern matches."""
    return ".".join(token if part in ("*", ">") else part for part in subject.split("."))


# --- configuration of the servers ----------------------------------------------------------------


async def _read_accounts(
    pool: Pool, domains: Mapping[str, Domain], grants: list[Grant], system: NatsConnection
) -> dict[str, dict[str, Any]]:
    """Read each account by its name in the files; empty for one that the servers do not know."""
    at = {
        account: key
        for g in grants
        for account, key in ((g.owner, g.owner_domain), (g.user, g.user_domain))
    }

    async def read(account: str, key: str) -> dict[str, Any]:
        link = pool.connections.get(domains[key].connection)
        name = (
            account if PUBLIC_KEY.fullmatch(account) else await read_account_name(link) or account
        )
        try:
            # Only from this server: a leaf's different view of the account may arrive first.
            subject = f"$SYS.REQ.SERVER.{system.server['server_id']}.ACCOUNTZ"
            asked = orjson.dumps({"account": name})
            answer = await request_system(system, ACCOUNT_INFO, subject, asked)
        except OFFLINE_ERRORS as error:
            raise ApiError(
                f"the servers report nothing about account {account}: {error}",
                hint=f"Does connection {system.settings.key} use the system account?",
            ) from None
        return {"id": name, **((answer.get("data") or {}).get("account_detail") or {})}

    details = await asyncio.gather(*(read(account, key) for account, key in at.items()))
    return dict(zip(at, details, strict=True))


async def read_account_name(link: NatsConnection | None) -> str | None:
    """Read the server's name of a connection's account: public key or name. Since 2.10."""
    if link is None:
        return None
    for _ in range(MIN_TRIES):
        try:
            answer = await request_system(link, USER_INFO, USER_INFO, b"")
        except ApiError:
            return None
        # A server behind a leafnode answers too, with another name, and is sometimes first.
        if (answer.get("server") or {}).get("id") == link.server["server_id"]:
            name = (answer.get("data") or {}).get("account")
            return str(name) if name else None
        await asyncio.sleep(FIRST_WAIT)
    return None


class _ConfigLookup(Struct, frozen=True):
    """The configuration of one spelling of a grant; `lack` is what it lacks."""

    check: GrantCheck
    lack: Literal["", "response", "import", "export"] = ""


#: Order of spellings, where there are two: the one that lacks least counts.
_LACK_ORDER: Final = ("", "response", "import", "export")


def _equivalent_grants(
    pool: Pool, domains: Mapping[str, Domain], grant: Grant, system: str
) -> list[Grant]:
    """Return the grant, and its spelling inside the owner's domain: `$JS.API.…`."""
    domain = domains[grant.owner_domain]
    prefix = f"{own_api_prefix(domain)}."
    server = pool.connections.get(domains[grant.user_domain].connection, pool.connections[system])
    if (
        domain.js_domain is None
        or not grant.subject.startswith(prefix)
        or server.server.get("domain") != domain.js_domain
    ):
        return [grant]
    return [grant, replace(grant, subject="$JS.API." + grant.subject.removeprefix(prefix))]


def _look_up(
    grant: Grant, tried: GrantCheck, accounts: Mapping[str, dict[str, Any]]
) -> _ConfigLookup:
    """Combine the try with the configuration: which side lacks the grant, or what was not tried."""
    owner, user = accounts[grant.owner], accounts[grant.user]
    exported = [
        e
        for e in owner.get("exports") or []
        if e.get("type") == grant.kind and is_subset(grant.subject, str(e.get("subject")))
    ]
    available = [
        e
        for e in exported
        if not e.get("approved_accounts") or user["id"] in e["approved_accounts"]
    ]
    if not available:
        why = f" to {grant.user}" if exported else ""
        missing = GrantCheck("missing", f"account {grant.owner} does not export it{why}")
        return _ConfigLookup(tried if tried.status == "ok" else missing, "export")
    imported = [i for i in user.get("imports") or [] if _is_import_of(i, grant, owner["id"])]
    if grant.streams_responses and not any(
        str(e.get("response_type", "")).startswith("Stream") for e in available
    ):
        why = (
            f"account {grant.owner} exports it for one answer only; it needs response_type: stream"
        )
        return _ConfigLookup(GrantCheck("missing", why), "response" if imported else "import")
    if tried.status == "ok":
        return _ConfigLookup(tried, "" if imported else "import")
    if not imported:
        return _ConfigLookup(
            GrantCheck("missing", f"account {grant.user} does not import it"), "import"
        )
    if tried.unanswered:
        return _ConfigLookup(tried)
    if tried.status == "unknown":
        return _ConfigLookup(GrantCheck("ok", "looked up, not tried"))
    return _ConfigLookup(
        GrantCheck(
            "missing",
            "both accounts have it on the server that was asked, and yet it does not come through",
        )
    )


def _is_import_of(row: Mapping[str, Any], grant: Grant, owner: str) -> bool:
    """Return True if an import has exactly this subject under exactly this local name."""
    subject, local = (
        str(row.get("subject")),
        str(row.get("local_subject") or row.get("to") or row.get("subject")),
    )
    if (
        row.get("type") != grant.kind
        or row.get("account") != owner
        or row.get("invalid")
        or not is_subset(grant.subject, subject)
    ):
        return False
    if not subject.endswith(">"):
        return local == grant.local_subject
    rest = grant.subject.split(".")[len(subject.split(".")) - 1 :]
    return ".".join([*local.split(".")[:-1], *rest]) == grant.local_subject
