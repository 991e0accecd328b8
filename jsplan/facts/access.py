"""Asks whether exports and imports are there, by sending through them what changes nothing. What is needed is left to `topology`.

A service is asked with a body that no server can read: the JetStream API answers with an error (10025, or status 400), an
acknowledgement or flow control with an unknown word is ignored, and the owner's own connection hears it pass. A stream is
tried on a subject of our own below the exported one. What cannot be tried without doing harm is only looked up, with the
credentials of the system account.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import orjson

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
from jsplan.jetstream import DomainApi, Pool, answer_schema
from jsplan.jetstream.api import unreadable_answer_error
from jsplan.jetstream.connection import Inbox, NatsConnection
from jsplan.subjects import is_literal, is_subset
from jsplan.topology.access import PUBLIC_KEY, Grant, own_api_prefix

#: Seconds until something that does not come through is taken for missing; interest takes a moment to cross a leafnode link.
ANSWER_TIMEOUT: Final = 5.0
#: Seconds to wait after the first try; each further one waits twice as long, so that a slow answer is heard too.
FIRST_WAIT: Final = 0.1
#: Tries at least, however slow the machine is.
MIN_TRIES: Final = 10
#: A body that is no JSON and no acknowledgement.
INVALID_PAYLOAD: Final = b"{"
#: What deletes even when it is asked badly, so that it is never tried.
DELETING_VERBS: Final = ("STREAM.DELETE.", "CONSUMER.DELETE.", "STREAM.PURGE.")


@dataclass(frozen=True, slots=True)
class GrantCheck:
    """What is known about one grant."""

    status: Status
    detail: str = ""


async def check_grants(
    pool: Pool, domains: Mapping[str, Domain], grants: Iterable[Grant], system: str | None = None
) -> dict[Grant, GrantCheck]:
    """Try every grant, all at once. `system` is the key of a connection to the system account, if there is one.

    The connections must be open. Raises ApiError when a connection is lost, ConnectError when that of `system` failed.
    """
    listed = list(grants)
    tried = await asyncio.gather(*(_try_grant(pool, domains, grant) for grant in listed))
    found = dict(zip(listed, tried, strict=True))
    if system is None:
        return found
    if system in pool.failures:
        raise pool.failures[system]
    accounts = await _read_accounts(pool, domains, listed, pool.connections[system])
    looked = {
        grant: [
            _look_up(way, seen, accounts)
            for way in _equivalent_grants(pool, domains, grant, system)
        ]
        for grant, seen in found.items()
    }
    return {
        grant: min(ways, key=lambda way: _LACK_ORDER.index(way.lack)).check
        for grant, ways in looked.items()
    }


async def _try_grant(pool: Pool, domains: Mapping[str, Domain], grant: Grant) -> GrantCheck:
    owner, user = (
        pool.connections.get(domains[key].connection)
        for key in (grant.owner_domain, grant.user_domain)
    )
    if user is None:
        return GrantCheck(
            "unknown",
            f"account {grant.user} cannot be reached: {pool.failures[domains[grant.user_domain].connection]}",
        )
    try:
        if grant.kind == "service":
            return await _try_service(owner, user, domains, grant)
        return await _try_stream(pool, owner, user, domains, grant)
    except NotPermittedError as error:
        return GrantCheck("unknown", str(error))


# --- services ------------------------------------------------------------------------------------------------


async def _try_service(
    owner: NatsConnection | None, user: NatsConnection, domains: Mapping[str, Domain], grant: Grant
) -> GrantCheck:
    domain = domains[grant.owner_domain]
    verb = grant.subject.removeprefix(f"{own_api_prefix(domain)}.")
    if verb.startswith(DELETING_VERBS):
        return GrantCheck("unknown", "not tried, since trying it would delete")
    token = _new_token()
    said, heard = _fill_wildcards(grant.local_subject, token), _fill_wildcards(grant.subject, token)
    mapped = (
        "$JS.API." + heard.removeprefix(f"{own_api_prefix(domain)}.")
        if verb != grant.subject
        else heard
    )
    async with _open_inboxes(owner, {heard, mapped}) as inboxes:
        silent = await _ask_until_heard(user, said, inboxes)
    if silent is None:
        return GrantCheck("ok")
    is_api = verb != grant.subject
    if owner is None and not is_api:
        return GrantCheck(
            "unknown",
            f"nobody listens just now, and account {grant.owner} cannot be reached to listen",
        )
    if not silent and not is_api and owner is not None:
        return GrantCheck(
            "unknown",
            f"somebody takes it, and the connection of {grant.owner_domain} does not hear it",
        )
    return GrantCheck("missing", _not_delivered_text(grant))


async def _ask_until_heard(user: NatsConnection, said: str, inboxes: list[Inbox]) -> bool | None:
    """None as soon as it comes through; else whether nobody ever listened. Raises NotPermittedError."""
    ears = [asyncio.create_task(inbox.next(10 * ANSWER_TIMEOUT, said)) for inbox in inboxes]
    loop = asyncio.get_running_loop()
    end, wait, deserted, tries = loop.time() + ANSWER_TIMEOUT, FIRST_WAIT, True, 0
    try:
        while loop.time() < end or (deserted and tries < MIN_TRIES):
            tries += 1
            try:
                await user.request(said, INVALID_PAYLOAD, wait)
            except NoRespondersError:
                await asyncio.sleep(FIRST_WAIT)
            except ApiTimeoutError:
                deserted, wait = False, 2 * wait
            else:
                return None
            if any(ear.done() and ear.exception() is None for ear in ears):
                return None
    finally:
        for ear in ears:
            ear.cancel()
        await asyncio.gather(*ears, return_exceptions=True)
    return deserted


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


# --- streams -------------------------------------------------------------------------------------------------


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
        return GrantCheck(
            "unknown",
            f"account {grant.owner} cannot be reached: {pool.failures[domains[grant.owner_domain].connection]}",
        )
    token = _new_token()
    said, heard = _fill_wildcards(grant.subject, token), _fill_wildcards(grant.local_subject, token)
    for key, subject in ((grant.owner_domain, said), (grant.user_domain, heard)):
        stored = await _find_storing_stream(pool, domains[key], subject)
        if stored:
            return GrantCheck(
                "unknown", f"not tried, since stream {stored} in {key} would store it"
            )
    loop = asyncio.get_running_loop()
    end, tries = loop.time() + ANSWER_TIMEOUT, 0
    async with user.open_inbox(heard) as inbox:
        await user.flush()
        while loop.time() < end or tries < MIN_TRIES:
            tries += 1
            await owner.publish(said, b"")
            await owner.flush()
            await user.flush()  # what one server handed on is here now
            with contextlib.suppress(ApiTimeoutError):
                await inbox.next(FIRST_WAIT, heard)
                return GrantCheck("ok")
    return GrantCheck("missing", _not_delivered_text(grant))


def _not_delivered_text(grant: Grant) -> str:
    return f"nothing comes through: {grant.owner} does not export it, or {grant.user} does not import it"


async def _find_storing_stream(pool: Pool, domain: Domain, subject: str) -> str | None:
    """A stream that would store the subject; None also where the domain cannot be asked."""
    try:
        answer = await DomainApi(
            domain, pool.connections[domain.connection], read_only=True
        ).request("STREAM.NAMES", {"subject": subject})
    except JsplanError:
        return None
    names = answer.get("streams") or []
    return str(names[0]) if names else None


def _new_token() -> str:
    return f"JSPLAN_PROBE_{os.urandom(6).hex()}"


def _fill_wildcards(subject: str, token: str) -> str:
    """A subject of our own that the pattern covers."""
    return ".".join(token if part in ("*", ">") else part for part in subject.split("."))


# --- what the servers have configured ------------------------------------------------------------------------


async def _read_accounts(
    pool: Pool, domains: Mapping[str, Domain], grants: list[Grant], system: NatsConnection
) -> dict[str, dict[str, Any]]:
    """What the servers know about each account, by its name in the files; empty for one they do not know."""
    at = {
        account: key
        for g in grants
        for account, key in ((g.owner, g.owner_domain), (g.user, g.user_domain))
    }

    async def one(account: str, key: str) -> dict[str, Any]:
        link = pool.connections.get(domains[key].connection)
        name = (
            account if PUBLIC_KEY.fullmatch(account) else await _read_account_name(link) or account
        )
        try:
            # Of the server that is asked, and no other: a leaf's own idea of the account may answer first where all are asked.
            subject = f"$SYS.REQ.SERVER.{system.server['server_id']}.ACCOUNTZ"
            answer = answer_schema.parse_system_answer(
                answer_schema.ACCOUNT_INFO,
                await system.request(subject, orjson.dumps({"account": name})),
            )
        except OFFLINE_ERRORS as error:
            raise ApiError(
                f"the servers tell nothing about account {account}: {error}",
                hint=f"Is connection {system.settings.key} one to the system account?",
            ) from None
        except answer_schema.InvalidAnswer as wrong:
            raise unreadable_answer_error(system.settings.shown, subject, wrong) from None
        return {"id": name, **((answer.get("data") or {}).get("account_detail") or {})}

    found = await asyncio.gather(*(one(account, key) for account, key in at.items()))
    return dict(zip(at, found, strict=True))


async def _read_account_name(link: NatsConnection | None) -> str | None:
    """How the server calls the account of a connection: its public key, or its name. Servers since 2.10 tell."""
    if link is None:
        return None
    for _ in range(MIN_TRIES):
        try:
            answer = answer_schema.parse_system_answer(
                answer_schema.USER_INFO, await link.request(answer_schema.USER_INFO, b"")
            )
        except (ApiError, answer_schema.InvalidAnswer):
            return None
        # A server behind a leafnode hears it too, calls the account by another name, and is the first to answer now and then.
        if (answer.get("server") or {}).get("id") == link.server["server_id"]:
            name = (answer.get("data") or {}).get("account")
            return str(name) if name else None
        await asyncio.sleep(FIRST_WAIT)
    return None


@dataclass(frozen=True, slots=True)
class _ConfigLookup:
    """What the configuration says of one spelling of a grant; `lack` is what it lacks."""

    check: GrantCheck
    lack: Literal["", "response", "import", "export"] = ""


#: Which spelling counts where there are two: the one that lacks least.
_LACK_ORDER: Final = ("", "response", "import", "export")


def _equivalent_grants(
    pool: Pool, domains: Mapping[str, Domain], grant: Grant, system: str
) -> list[Grant]:
    """The grant as it is, and as a server in the owner's domain takes it too: `$JS.API.…` for `$JS.hub.API.…`."""
    domain = domains[grant.owner_domain]
    prefix = f"{own_api_prefix(domain)}."
    asked = pool.connections.get(domains[grant.user_domain].connection, pool.connections[system])
    if (
        domain.js_domain is None
        or not grant.subject.startswith(prefix)
        or asked.server.get("domain") != domain.js_domain
    ):
        return [grant]
    return [grant, replace(grant, subject="$JS.API." + grant.subject.removeprefix(prefix))]


def _look_up(
    grant: Grant, tried: GrantCheck, accounts: Mapping[str, dict[str, Any]]
) -> _ConfigLookup:
    """What the configuration adds to what was tried: which side lacks it, and what could not be tried."""
    owner, user = accounts[grant.owner], accounts[grant.user]
    offered = [
        e
        for e in owner.get("exports") or []
        if e.get("type") == grant.kind and is_subset(grant.subject, str(e.get("subject")))
    ]
    theirs = [
        e for e in offered if not e.get("approved_accounts") or user["id"] in e["approved_accounts"]
    ]
    if not theirs:
        why = f" to {grant.user}" if offered else ""
        missing = GrantCheck("missing", f"account {grant.owner} does not export it{why}")
        return _ConfigLookup(tried if tried.status == "ok" else missing, "export")
    taken = [i for i in user.get("imports") or [] if _is_import_of(i, grant, owner["id"])]
    if grant.streams_responses and not any(
        str(e.get("response_type", "")).startswith("Stream") for e in theirs
    ):
        why = (
            f"account {grant.owner} exports it for one answer only; it needs response_type: stream"
        )
        return _ConfigLookup(GrantCheck("missing", why), "response" if taken else "import")
    if tried.status == "ok":
        return _ConfigLookup(tried, "" if taken else "import")
    if not taken:
        return _ConfigLookup(
            GrantCheck("missing", f"account {grant.user} does not import it"), "import"
        )
    if tried.status == "unknown":
        return _ConfigLookup(GrantCheck("ok", "looked up, not tried"))
    return _ConfigLookup(
        GrantCheck(
            "missing",
            "both accounts have it on the server that was asked, and yet it does not come through",
        )
    )


def _is_import_of(row: Mapping[str, Any], grant: Grant, owner: str) -> bool:
    """Whether an import brings exactly the subject under exactly the local name."""
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
