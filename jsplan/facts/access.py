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
from jsplan.errors import OFFLINE, ApiError, ApiTimeoutError, JsplanError, NoRespondersError, NotPermittedError
from jsplan.jetstream import DomainApi, Pool, answers
from jsplan.jetstream.api import unreadable
from jsplan.jetstream.link import Inbox, Link
from jsplan.subjects import is_literal, within
from jsplan.topology.access import PUBLIC_KEY, Grant, own_prefix

#: Seconds until something that does not come through is taken for missing; interest takes a moment to cross a leafnode link.
PATIENCE: Final = 5.0
#: Seconds to wait after the first try; each further one waits twice as long, so that a slow answer is heard too.
FIRST_WAIT: Final = 0.1
#: Tries at least, however slow the machine is.
TRIES: Final = 10
#: A body that is no JSON and no acknowledgement.
UNREADABLE: Final = b"{"
#: What deletes even when it is asked badly, so that it is never tried.
HARMFUL: Final = ("STREAM.DELETE.", "CONSUMER.DELETE.", "STREAM.PURGE.")


@dataclass(frozen=True, slots=True)
class Found:
    """What is known about one grant."""

    status: Status
    detail: str = ""


async def check(pool: Pool, domains: Mapping[str, Domain], grants: Iterable[Grant], system: str | None = None) -> dict[Grant, Found]:
    """Try every grant, all at once. `system` is the key of a connection to the system account, if there is one.

    The connections must be open. Raises ApiError when a connection is lost, ConnectError when that of `system` failed.
    """
    listed = list(grants)
    tried = await asyncio.gather(*(_try(pool, domains, grant) for grant in listed))
    found = dict(zip(listed, tried, strict=True))
    if system is None:
        return found
    if system in pool.failures:
        raise pool.failures[system]
    accounts = await _accounts(pool, domains, listed, pool.links[system])
    looked = {grant: [_looked_up(way, seen, accounts) for way in _spellings(pool, domains, grant, system)] for grant, seen in found.items()}
    return {grant: min(ways, key=lambda way: _DISTANCE.index(way.lack)).found for grant, ways in looked.items()}


async def _try(pool: Pool, domains: Mapping[str, Domain], grant: Grant) -> Found:
    owner, user = (pool.links.get(domains[key].connection) for key in (grant.owner_at, grant.user_at))
    if user is None:
        return Found("unknown", f"account {grant.user} cannot be reached: {pool.failures[domains[grant.user_at].connection]}")
    try:
        if grant.kind == "service":
            return await _service(owner, user, domains, grant)
        return await _stream(pool, owner, user, domains, grant)
    except NotPermittedError as error:
        return Found("unknown", str(error))


# --- services ------------------------------------------------------------------------------------------------


async def _service(owner: Link | None, user: Link, domains: Mapping[str, Domain], grant: Grant) -> Found:
    domain = domains[grant.owner_at]
    verb = grant.subject.removeprefix(f"{own_prefix(domain)}.")
    if verb.startswith(HARMFUL):
        return Found("unknown", "not tried, since trying it would delete")
    token = _token()
    said, heard = _filled(grant.local, token), _filled(grant.subject, token)
    mapped = "$JS.API." + heard.removeprefix(f"{own_prefix(domain)}.") if verb != grant.subject else heard
    async with _listening(owner, {heard, mapped}) as inboxes:
        silent = await _asked(user, said, inboxes)
    if silent is None:
        return Found("ok")
    is_api = verb != grant.subject
    if owner is None and not is_api:
        return Found("unknown", f"nobody listens just now, and account {grant.owner} cannot be reached to listen")
    if not silent and not is_api and owner is not None:
        return Found("unknown", f"somebody takes it, and the connection of {grant.owner_at} does not hear it")
    return Found("missing", _either(grant))


async def _asked(user: Link, said: str, inboxes: list[Inbox]) -> bool | None:
    """None as soon as it comes through; else whether nobody ever listened. Raises NotPermittedError."""
    ears = [asyncio.create_task(inbox.next(10 * PATIENCE, said)) for inbox in inboxes]
    loop = asyncio.get_running_loop()
    end, wait, deserted, tries = loop.time() + PATIENCE, FIRST_WAIT, True, 0
    try:
        while loop.time() < end or (deserted and tries < TRIES):
            tries += 1
            try:
                await user.request(said, UNREADABLE, wait)
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
async def _listening(link: Link | None, subjects: set[str]) -> AsyncIterator[list[Inbox]]:
    async with contextlib.AsyncExitStack() as stack:
        inboxes = [await stack.enter_async_context(link.inbox(subject)) for subject in sorted(subjects)] if link is not None else []
        if link is not None:
            await link.flush()
        yield inboxes


# --- streams -------------------------------------------------------------------------------------------------


async def _stream(pool: Pool, owner: Link | None, user: Link, domains: Mapping[str, Domain], grant: Grant) -> Found:
    if is_literal(grant.subject):
        return Found("unknown", "not tried, since a consumer delivers there; --system-connection looks it up")
    if owner is None:
        return Found("unknown", f"account {grant.owner} cannot be reached: {pool.failures[domains[grant.owner_at].connection]}")
    token = _token()
    said, heard = _filled(grant.subject, token), _filled(grant.local, token)
    for key, subject in ((grant.owner_at, said), (grant.user_at, heard)):
        stored = await _stored(pool, domains[key], subject)
        if stored:
            return Found("unknown", f"not tried, since stream {stored} in {key} would store it")
    loop = asyncio.get_running_loop()
    end, tries = loop.time() + PATIENCE, 0
    async with user.inbox(heard) as inbox:
        await user.flush()
        while loop.time() < end or tries < TRIES:
            tries += 1
            await owner.publish(said, b"")
            await owner.flush()
            await user.flush()  # what one server handed on is here now
            with contextlib.suppress(ApiTimeoutError):
                await inbox.next(FIRST_WAIT, heard)
                return Found("ok")
    return Found("missing", _either(grant))


def _either(grant: Grant) -> str:
    return f"nothing comes through: {grant.owner} does not export it, or {grant.user} does not import it"


async def _stored(pool: Pool, domain: Domain, subject: str) -> str | None:
    """A stream that would store the subject; None also where the domain cannot be asked."""
    try:
        answer = await DomainApi(domain, pool.links[domain.connection], read_only=True).request("STREAM.NAMES", {"subject": subject})
    except JsplanError:
        return None
    names = answer.get("streams") or []
    return str(names[0]) if names else None


def _token() -> str:
    return f"JSPLAN_PROBE_{os.urandom(6).hex()}"


def _filled(subject: str, token: str) -> str:
    """A subject of our own that the pattern covers."""
    return ".".join(token if part in ("*", ">") else part for part in subject.split("."))


# --- what the servers have configured ------------------------------------------------------------------------


async def _accounts(pool: Pool, domains: Mapping[str, Domain], grants: list[Grant], system: Link) -> dict[str, dict[str, Any]]:
    """What the servers know about each account, by its name in the files; empty for one they do not know."""
    at = {account: key for g in grants for account, key in ((g.owner, g.owner_at), (g.user, g.user_at))}

    async def one(account: str, key: str) -> dict[str, Any]:
        link = pool.links.get(domains[key].connection)
        name = account if PUBLIC_KEY.fullmatch(account) else await _identity(link) or account
        try:
            # Of the server that is asked, and no other: a leaf's own idea of the account may answer first where all are asked.
            subject = f"$SYS.REQ.SERVER.{system.server['server_id']}.ACCOUNTZ"
            answer = answers.system(answers.ACCOUNT, await system.request(subject, orjson.dumps({"account": name})))
        except OFFLINE as error:
            raise ApiError(
                f"the servers tell nothing about account {account}: {error}",
                hint=f"Is connection {system.target.key} one to the system account?",
            ) from None
        except answers.WrongShape as wrong:
            raise unreadable(system.target.shown, subject, wrong) from None
        return {"id": name, **((answer.get("data") or {}).get("account_detail") or {})}

    found = await asyncio.gather(*(one(account, key) for account, key in at.items()))
    return dict(zip(at, found, strict=True))


async def _identity(link: Link | None) -> str | None:
    """How the server calls the account of a connection: its public key, or its name. Servers since 2.10 tell."""
    if link is None:
        return None
    for _ in range(TRIES):
        try:
            answer = answers.system(answers.USER, await link.request(answers.USER, b""))
        except (ApiError, answers.WrongShape):
            return None
        # A server behind a leafnode hears it too, calls the account by another name, and is the first to answer now and then.
        if (answer.get("server") or {}).get("id") == link.server["server_id"]:
            name = (answer.get("data") or {}).get("account")
            return str(name) if name else None
        await asyncio.sleep(FIRST_WAIT)
    return None


@dataclass(frozen=True, slots=True)
class _Looked:
    """What the configuration says of one spelling of a grant; `lack` is what it lacks."""

    found: Found
    lack: Literal["", "response", "import", "export"] = ""


#: Which spelling counts where there are two: the one that lacks least.
_DISTANCE: Final = ("", "response", "import", "export")


def _spellings(pool: Pool, domains: Mapping[str, Domain], grant: Grant, system: str) -> list[Grant]:
    """The grant as it is, and as a server in the owner's domain takes it too: `$JS.API.…` for `$JS.hub.API.…`."""
    domain = domains[grant.owner_at]
    prefix = f"{own_prefix(domain)}."
    asked = pool.links.get(domains[grant.user_at].connection, pool.links[system])
    if domain.js_domain is None or not grant.subject.startswith(prefix) or asked.server.get("domain") != domain.js_domain:
        return [grant]
    return [grant, replace(grant, subject="$JS.API." + grant.subject.removeprefix(prefix))]


def _looked_up(grant: Grant, tried: Found, accounts: Mapping[str, dict[str, Any]]) -> _Looked:
    """What the configuration adds to what was tried: which side lacks it, and what could not be tried."""
    owner, user = accounts[grant.owner], accounts[grant.user]
    offered = [e for e in owner.get("exports") or [] if e.get("type") == grant.kind and within(grant.subject, str(e.get("subject")))]
    theirs = [e for e in offered if not e.get("approved_accounts") or user["id"] in e["approved_accounts"]]
    if not theirs:
        why = f" to {grant.user}" if offered else ""
        missing = Found("missing", f"account {grant.owner} does not export it{why}")
        return _Looked(tried if tried.status == "ok" else missing, "export")
    taken = [i for i in user.get("imports") or [] if _takes(i, grant, owner["id"])]
    if grant.streamed and not any(str(e.get("response_type", "")).startswith("Stream") for e in theirs):
        why = f"account {grant.owner} exports it for one answer only; it needs response_type: stream"
        return _Looked(Found("missing", why), "response" if taken else "import")
    if tried.status == "ok":
        return _Looked(tried, "" if taken else "import")
    if not taken:
        return _Looked(Found("missing", f"account {grant.user} does not import it"), "import")
    if tried.status == "unknown":
        return _Looked(Found("ok", "looked up, not tried"))
    return _Looked(Found("missing", "both accounts have it on the server that was asked, and yet it does not come through"))


def _takes(row: Mapping[str, Any], grant: Grant, owner: str) -> bool:
    """Whether an import brings exactly the subject under exactly the local name."""
    subject, local = str(row.get("subject")), str(row.get("local_subject") or row.get("to") or row.get("subject"))
    if row.get("type") != grant.kind or row.get("account") != owner or row.get("invalid") or not within(grant.subject, subject):
        return False
    if not subject.endswith(">"):
        return local == grant.local
    rest = grant.subject.split(".")[len(subject.split(".")) - 1 :]
    return ".".join([*local.split(".")[:-1], *rest]) == grant.local
