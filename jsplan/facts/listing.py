"""Everything in the domains, by their own lists, as `status` shows it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS, ApiError, NotPermittedError
from jsplan.facts.duplicate_servers import DuplicateServerCheck
from jsplan.facts.inventory import may_be_listed
from jsplan.facts.live import DomainFacts, Live, LiveObject
from jsplan.facts.reader import (
    identify_domains,
    mark_offline,
    parse_consumer,
    parse_stream,
    read_into,
    require_reachable,
    run_parallel,
)
from jsplan.jetstream import DomainApi, Pool
from jsplan.topology.routes import is_import

#: The metadata key with the server's version, in INFO of streams since 2.11.
VERSION_KEY = "_nats.ver"


async def list_live(
    pool: Pool,
    domains: Mapping[str, Domain],
    known: frozenset[str],
    declared: Iterable[Address],
    domain_keys: Collection[str] | None = None,
    on_read: Callable[[int], object] = lambda _: None,
) -> Live:
    """Read every stream and consumer of the domains.

    `domain_keys` selects domains; default: all without `same_as`. Where listing is not allowed, as
    in an import, read the `declared` ones. `on_read` is called with the number of objects that were
    read since its last call. Raises ConnectError as `read_live` does.
    """
    named = {
        key: domain
        for key, domain in domains.items()
        if domain.same_as is None and (domain_keys is None or key in domain_keys)
    }
    await pool.open(domain.connection for domain in named.values())
    async with DuplicateServerCheck() as server_check:
        live = Live(
            {
                facts.key: facts
                for facts in await identify_domains(
                    pool, named.values(), domains, known, server_check
                )
            }
        )
        require_reachable(pool, live)
        wanted = list(declared)
        reachable = [key for key in named if live.is_reachable(key)]
        await asyncio.gather(
            *(
                _read_domain(
                    pool.api(named[key]), live, [a for a in wanted if a.domain == key], on_read
                )
                for key in reachable
            )
        )
        require_reachable(pool, live)
        await server_check.require_single_servers()
    return live


async def _read_domain(
    api: DomainApi, live: Live, declared: list[Address], on_read: Callable[[int], object]
) -> None:
    key = api.domain.key
    try:
        if is_import(api.domain):
            await run_parallel(partial(read_into, api, live), declared)
        else:
            await _read_by_list(api, live, declared, on_read)
    except OFFLINE_ERRORS as error:
        mark_offline(live, key, error)
    except ApiError as error:
        live.unlisted[key] = str(error)


async def _read_by_list(
    api: DomainApi, live: Live, declared: list[Address], on_read: Callable[[int], object]
) -> None:
    key, listed = api.domain.key, dict[Address, LiveObject]()
    try:
        infos, offline = await api.streams()
    except NotPermittedError as error:
        live.unlisted[key] = str(error)
        await run_parallel(partial(read_into, api, live), declared)
        return
    for info in infos:
        stream = parse_stream(Address.of_stream(key, info["config"]["name"]), info)
        if may_be_listed(stream.address):
            listed[stream.address] = stream
    live.objects |= listed
    on_read(len(listed))
    live.unreadable |= {Address.of_stream(key, name): why for name, why in offline.items()}
    parents = [a for a, stream in listed.items() if stream.state.get("consumer_count")]
    await _read_consumers(api, live, parents, on_read)
    await _fill_server_facts(api, live.domains[key], listed)


async def _read_consumers(
    api: DomainApi, live: Live, streams: Sequence[Address], on_read: Callable[[int], object]
) -> None:
    """Read the consumers of these streams: the first pages together, as most have no other.

    After a failure the others are asked for alone: then the error is that of the stream.
    """
    firsts: dict[Address, dict[str, Any]] = {}

    def take(number: int, page: dict[str, Any]) -> None:
        firsts[streams[number]] = page
        on_read(len(page.get("consumers") or ()))

    async def read(stream: Address) -> None:
        first = firsts.get(stream, {})
        infos, missing = await api.consumers(stream.stream, first)
        on_read(len(infos) - len(first.get("consumers") or ()))
        for name, why in missing.items():
            live.unreadable[Address(stream.domain, "consumer", f"{stream.stream}/{name}")] = why
        for info in infos:
            address = Address(stream.domain, "consumer", f"{stream.stream}/{info['name']}")
            if may_be_listed(address):
                live.objects[address] = parse_consumer(address, info)

    with suppress(ApiError):
        await api.first_pages([f"CONSUMER.LIST.{stream.stream}" for stream in streams], take)
    await run_parallel(read, streams)


async def _fill_server_facts(
    api: DomainApi, facts: DomainFacts, listed: Mapping[Address, LiveObject]
) -> None:
    """Identify the server behind the connected one by its streams, one of which has its version."""
    if not listed or (facts.server and facts.version):
        return
    address = min(listed)
    info = await api.stream_info(address.stream)
    if info is None:
        return
    stream = parse_stream(address, info)
    if not facts.server:
        names = {
            "name": stream.server.get("leader"),
            "cluster": stream.server.get("name") if stream.is_clustered else None,
        }
        facts.server = {key: value for key, value in names.items() if value}
    facts.version = facts.version or (stream.raw.get("metadata") or {}).get(VERSION_KEY)
