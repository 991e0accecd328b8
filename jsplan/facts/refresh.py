"""Reads the live side of a command, in all its domains at once. Never writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS, ApiError, NotPermittedError
from jsplan.facts.domains import (
    DuplicateServerCheck,
    Refusals,
    identify_domains,
    mark_offline,
    require_reachable,
)
from jsplan.facts.live import Live, server_names
from jsplan.facts.reader import (
    MAX_WORKERS,
    Counter,
    ignore_count,
    list_consumers_into,
    list_streams_into,
    read_into,
)
from jsplan.facts.unmanaged import may_be_listed
from jsplan.jetstream import DomainApi, Pool
from jsplan.topology.routes import is_import

#: The metadata key with the server's version, in INFO of streams since 2.11.
VERSION_KEY = "_nats.ver"


async def read_live(
    pool: Pool,
    domains: Mapping[str, Domain],
    wanted: Iterable[Address],
    known: frozenset[str] = frozenset(),
    identify_only: Iterable[str] = (),
    on_read: Counter = ignore_count,
    *,
    may_refuse: Collection[str] = (),
) -> Live:
    """Read every wanted address, and identify its domains and those in `identify_only`.

    `on_read` is called with the number of objects that were read since its last call.

    `known` are domain keys that have answered before (they are in state): one of them may be
    offline even when it is the only one of its connection. Raises ConnectError when a connection
    leads to another server, when no domain answers, and when two servers answer for one domain.
    A domain that refuses to be read is an error, too; one of `may_refuse` only `has_error`.
    """
    by_domain: dict[str, list[Address]] = {key: [] for key in sorted(identify_only)}
    for address in sorted(wanted):
        if address.domain in domains:
            by_domain.setdefault(address.domain, []).append(address)

    async def read(api: DomainApi, live: Live) -> None:
        # The connection limits the tasks of all domains, so many domains need few each.
        workers = max(4, MAX_WORKERS // max(1, len(live.reachable)))
        await read_into(api, live, by_domain[api.domain.key], on_read, workers)

    live = await _read_domains(pool, domains, by_domain, known, read, may_refuse=may_refuse)
    live.requested = {address for addresses in by_domain.values() for address in addresses}
    for address, found in live.objects.items():
        facts = live.domains[address.domain]
        facts.server = facts.server or server_names(found)
    return live


async def list_live(
    pool: Pool,
    domains: Mapping[str, Domain],
    known: frozenset[str],
    declared: Iterable[Address],
    domain_keys: Collection[str] | None = None,
    on_read: Counter = ignore_count,
    *,
    may_refuse: Collection[str] = (),
) -> Live:
    """Read every stream and consumer of the domains.

    `domain_keys` selects domains; default: all without `same_as`. Where listing is not allowed, as
    in an import, read the `declared` ones; those of a domain that refuses this too are unreadable.
    `on_read` is called with the number of objects that were read since its last call. `may_refuse`
    and what is raised are as in `read_live`.
    """
    by_domain: dict[str, list[Address]] = {
        key: []
        for key, domain in domains.items()
        if domain.is_own and (domain_keys is None or key in domain_keys)
    }
    for address in declared:
        if address.domain in by_domain:
            by_domain[address.domain].append(address)

    async def read(api: DomainApi, live: Live) -> None:
        wanted = by_domain[api.domain.key]
        try:
            await _read_all(api, live, wanted, on_read)
        except OFFLINE_ERRORS:
            raise
        except ApiError as error:
            unread = (address for address in wanted if address not in live.objects)
            live.unreadable |= dict.fromkeys(unread, str(error))
            live.unlisted[api.domain.key] = str(error)

    return await _read_domains(pool, domains, by_domain, known, read, may_refuse=may_refuse)


async def _read_domains(
    pool: Pool,
    domains: Mapping[str, Domain],
    keys: Collection[str],
    known: frozenset[str],
    read: Callable[[DomainApi, Live], Awaitable[None]],
    *,
    may_refuse: Collection[str],
) -> Live:
    """Identify these domains, and read each that answers. Raises ConnectError as `read_live`."""
    await pool.open(domains[key].connection for key in keys)
    refusals = Refusals(may_refuse)
    async with DuplicateServerCheck() as server_check:
        asked = [domains[key] for key in keys]
        facts = await identify_domains(pool, asked, domains, known, server_check, refusals)
        live = Live({each.key: each for each in facts})
        require_reachable(pool, live, refusals)

        async def read_domain(key: str) -> None:
            try:
                await read(pool.api(domains[key]), live)
            except OFFLINE_ERRORS as error:
                mark_offline(live, key, error)
            except ApiError as error:
                live.domains[key] = refusals.note(key, error)

        await asyncio.gather(*(read_domain(key) for key in keys if live.is_reachable(key)))
        require_reachable(pool, live, refusals)
        await server_check.require_single_servers()
    return live


async def _read_all(api: DomainApi, live: Live, declared: list[Address], on_read: Counter) -> None:
    if not is_import(api.domain):
        try:
            await _list_all(api, live, on_read)
        except NotPermittedError as error:
            live.unlisted[api.domain.key] = str(error)
        else:
            await _complete_facts(api, live)
            return
    await read_into(api, live, declared, on_read)


async def _list_all(api: DomainApi, live: Live, on_read: Counter) -> None:
    streams = await list_streams_into(api, live)
    on_read(len(streams))
    shown = _drop_internal(live, streams)
    parents = [a for a in shown if live.objects[a].state.get("consumer_count")]
    _drop_internal(live, await list_consumers_into(api, live, parents, on_read))


def _drop_internal(live: Live, listed: Iterable[Address]) -> list[Address]:
    """Remove what is internal to the server or jsplan; return the rest."""
    shown = []
    for address in listed:
        if may_be_listed(address):
            shown.append(address)
        else:
            del live.objects[address]
    return shown


async def _complete_facts(api: DomainApi, live: Live) -> None:
    """Identify the server behind the connected one by its streams, one of which has its version."""
    facts, streams = live.domains[api.domain.key], list(live.streams(api.domain.key))
    if not streams or (facts.server and facts.version):
        return
    first = min(streams, key=lambda stream: stream.address)
    await read_into(api, found := Live(), [first.address])
    for stream in found.objects.values():
        facts.server = facts.server or server_names(stream)
        facts.version = facts.version or (stream.raw.get("metadata") or {}).get(VERSION_KEY)
