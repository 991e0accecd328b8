"""Reads the live side of a plan: every wanted object, in all domains at once. Never writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from itertools import chain

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS
from jsplan.facts.bulk_read import is_list_shorter, list_consumers, list_streams, read_infos
from jsplan.facts.duplicate_servers import DuplicateServerCheck
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.reader import (
    MAX_WORKERS,
    identify_domains,
    mark_offline,
    read_into,
    require_reachable,
    run_parallel,
)
from jsplan.jetstream import Pool


async def read_live(
    pool: Pool,
    domains: Mapping[str, Domain],
    wanted: Iterable[Address],
    known: frozenset[str] = frozenset(),
    identify_only: Iterable[str] = (),
    on_read: Callable[[int], object] = lambda _: None,
) -> Live:
    """Read every wanted address, and identify its domains and those in `identify_only`.

    `on_read` is called with the number of objects that were read since its last call.

    `known` are domain keys that have answered before (they are in state): one of them may be
    offline even when it is the only one of its connection. Raises ConnectError when a connection
    leads to another server, when no domain answers, and when two servers answer for one domain.
    """
    by_domain = {key: list[Address]() for key in sorted(identify_only)} | _group_by_domain(
        wanted, domains
    )
    await pool.open(domains[key].connection for key in by_domain)
    async with DuplicateServerCheck() as server_check:
        live = Live(
            {
                facts.key: facts
                for facts in await identify_domains(
                    pool, [domains[key] for key in by_domain], domains, known, server_check
                )
            }
        )
        require_reachable(pool, live)
        reachable = [key for key in by_domain if live.is_reachable(key)]
        await asyncio.gather(
            *(
                _read_domain(
                    pool,
                    domains[key],
                    live,
                    by_domain[key],
                    _workers_per_domain(len(reachable)),
                    on_read,
                )
                for key in reachable
            )
        )
        require_reachable(pool, live)
        await server_check.require_single_servers()
    live.requested = {address for addresses in by_domain.values() for address in addresses}
    _fill_server_names(live)
    return live


def _group_by_domain(
    wanted: Iterable[Address], domains: Mapping[str, Domain]
) -> dict[str, list[Address]]:
    grouped: dict[str, list[Address]] = {}
    for address in sorted(wanted):
        if address.domain in domains:
            grouped.setdefault(address.domain, []).append(address)
    return grouped


def _workers_per_domain(domains: int) -> int:
    """Return the tasks per domain. The connection limits all, so many domains need few each."""
    return max(4, MAX_WORKERS // max(1, domains))


async def _read_domain(
    pool: Pool,
    domain: Domain,
    live: Live,
    addresses: list[Address],
    workers: int,
    on_read: Callable[[int], object],
) -> None:
    api = pool.api(domain)
    streams = [address for address in addresses if address.kind != "consumer"]
    consumers: dict[Address, list[Address]] = {}
    for address in addresses:
        if address.kind == "consumer" and (stream := address.parent):
            consumers.setdefault(stream, []).append(address)

    def keep(found: Mapping[Address, LiveObject]) -> None:
        live.objects.update(found)
        on_read(len(found))

    async def read(address: Address) -> None:
        await read_into(api, live, address)
        on_read(1)

    async def read_list(stream: Address) -> None:
        keep(await list_consumers(api, stream, consumers[stream]))

    async def read_rest(wanted: Iterable[Address], absent: Container[Address] = ()) -> None:
        unread = [a for a in wanted if a not in live.objects and a not in absent]
        found, absent = await read_infos(api, unread, on_read)
        live.objects.update(found)
        await run_parallel(read, [a for a in unread if a not in found and a not in absent], workers)

    try:
        found, absent = await list_streams(api, live.domains[domain.key], streams)
        keep(found)
        on_read(len(absent))
        await read_rest(streams, absent)
        for stream in streams:
            if stream in live.objects:
                continue
            theirs = consumers.pop(stream, [])  # it has no consumers either, or none to read
            if (why := live.unreadable.get(stream)) is not None:
                live.unreadable |= dict.fromkeys(theirs, why)
            on_read(len(theirs))
        lists = [s for s, found in consumers.items() if is_list_shorter(live.get(s), found)]
        await run_parallel(read_list, lists, workers)
        await read_rest(chain.from_iterable(consumers.values()))
    except OFFLINE_ERRORS as error:
        mark_offline(live, domain.key, error)


def _fill_server_names(live: Live) -> None:
    """Name the server of a domain behind the connected one by the answers of its streams."""
    for address, found in live.objects.items():
        facts = live.domains[address.domain]
        if not facts.server and found.server:
            names = {
                "name": found.server.get("leader"),
                "cluster": found.server.get("name") if found.is_clustered else None,
            }
            facts.server = {key: value for key, value in names.items() if value}
