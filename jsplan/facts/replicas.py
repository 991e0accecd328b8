"""Compares the replicas of streams, as servers report them to the system account. Read-only.

Raft compares the log of a stream, not what its replicas have stored. One that lost a file, or
cannot read it, follows without those messages, and they are lost for good once it leads (measured
on 2.15.1: a missing block and a flipped bit). INFO shows only the leader's.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Final

import orjson

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.diagnostics import Diagnostic
from jsplan.errors import ApiError, ApiTimeoutError
from jsplan.facts.access import read_account_name
from jsplan.facts.live import Live
from jsplan.jetstream import Pool
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.read_only import REPLICAS_PING

#: Seconds before each look: a replica may be behind for a moment, or delete by age a little later.
PAUSES: Final = (0.0, 1.0, 9.0)
#: Seconds for the first answer, and for each one more: the number of servers is not known.
FIRST_TIMEOUT: Final = 5.0
NEXT_TIMEOUT: Final = 0.5
MAX_SERVERS: Final = 1000
#: Counts that are equal on all replicas of a stream.
FIELDS: Final = ("messages", "first_seq", "last_seq", "num_deleted")

#: The counts of each replica of each stream, by stream and server.
Replicas = dict[str, dict[str, dict[str, int]]]


async def compare_replicas(
    pool: Pool, domains: Mapping[str, Domain], live: Live, addresses: Collection[Address]
) -> None:
    """Add `replicas` to the state of each stream whose replicas have other messages.

    These are its counts by server, as in FIELDS. Domains without `system` are left out. What cannot
    be read goes to `live.unread_replicas`. Raises ConnectError for invalid settings.
    """
    wanted: dict[str, list[Address]] = {}
    for address in addresses:
        stream = live.get(address) if domains[address.domain].system is not None else None
        if stream is not None and address.is_stream and (stream.raw.get("num_replicas") or 1) > 1:
            wanted.setdefault(address.domain, []).append(address)
    await pool.open({str(domains[key].system) for key in wanted})
    await asyncio.gather(
        *(_compare_domain(pool, domains[key], live, found) for key, found in wanted.items())
    )


async def _compare_domain(pool: Pool, domain: Domain, live: Live, addresses: list[Address]) -> None:
    key = str(domain.system)
    if (failure := pool.failures.get(key)) is not None:
        live.unread_replicas[domain.key] = str(failure)
        return
    account = await read_account_name(pool.connections[domain.connection])
    if account is None:
        live.unread_replicas[domain.key] = "its server does not say the account of the connection"
        return
    try:
        read = partial(_read_replicas, pool.connections[key], account, domain.js_domain or "")
        found = await find_disagreeing(read, {a.stream for a in addresses})
    except ApiError as error:
        live.unread_replicas[domain.key] = str(error)
        return
    for address in addresses:
        if (replicas := found.get(address.stream)) is not None:
            stream = live.objects[address]
            state = stream.state | {"replicas": replicas}
            live.objects[address] = dataclasses.replace(stream, state=state)


def note_unread_replicas(live: Live) -> Iterator[Diagnostic]:
    """Yield a warning for each domain whose replicas could not be compared."""
    for key, reason in sorted(live.unread_replicas.items()):
        text = f"the replicas of streams in domain {key} could not be compared: {reason}"
        detail = "Check the connection that `system` of the domain names."
        yield Diagnostic("warning", "JS485", text, detail, f"{key}/**")


async def find_disagreeing(
    read: Callable[[], Awaitable[Replicas]], streams: Collection[str]
) -> Replicas:
    """Return the replicas of the streams that differ in a count which does not change meanwhile."""
    suspects = {name: frozenset(FIELDS) for name in streams}
    found: Replicas = {}
    for pause in PAUSES:
        await asyncio.sleep(pause)
        before, found = found, await read()
        suspects = {
            name: differing
            for name, fields in suspects.items()
            if (differing := _differing(fields, found.get(name, {}), before.get(name)))
        }
        if not suspects:
            return {}
    return {name: found[name] for name in suspects}


def _differing(
    fields: frozenset[str],
    now: Mapping[str, Mapping[str, int]],
    before: Mapping[str, Mapping[str, int]] | None,
) -> frozenset[str]:
    """Return the counts in which replicas differ, and which are the same as before on each."""
    return frozenset(
        name
        for name in fields
        if len({replica[name] for replica in now.values()}) > 1
        and (
            before is None
            or {at: one[name] for at, one in now.items()}
            == {at: one[name] for at, one in before.items()}
        )
    )


async def _read_replicas(system: NatsConnection, account: str, js_domain: str) -> Replicas:
    """Read the counts of all replicas of the streams of one account in one JetStream domain.

    Raises ApiError if no server answers.
    """
    request = {"account": account, "accounts": True, "streams": True}
    found: Replicas = {}
    async with system.open_inbox() as inbox:
        await inbox.publish(REPLICAS_PING, orjson.dumps(request))
        for number in range(MAX_SERVERS):
            wait = NEXT_TIMEOUT if number else FIRST_TIMEOUT
            try:
                arrived = await inbox.next(wait, REPLICAS_PING)
            except ApiTimeoutError:
                if not number:
                    raise
                break
            if arrived.status:
                raise ApiError(
                    "no server answers the system request",
                    hint=f"Does {system.settings.key} use the system account?",
                )
            _add_server(arrived.data, js_domain, found)
    return found


def _add_server(data: bytes, js_domain: str, found: Replicas) -> None:
    """Add the answer of one server. What is not as expected is left out."""
    try:
        answer = orjson.loads(data)
        server = answer["server"]
        if str(server.get("domain") or "") != js_domain:
            return
        for account in answer["data"].get("account_details") or ():
            for stream in account.get("stream_detail") or ():
                counts = {name: int(stream["state"].get(name) or 0) for name in FIELDS}
                found.setdefault(str(stream["name"]), {})[str(server["name"])] = counts
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
        return
