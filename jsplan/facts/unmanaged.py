"""Reads of unmanaged streams on a plan's subjects and unmanaged consumers of its streams.

Only where a plan needs it, and where counts that are already known show that others exist.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.measurement import UnmanagedRequest
from jsplan.facts.reader import parse_consumer, read_object, run_parallel
from jsplan.jetstream import DomainApi, Pool

#: Streams in one page of STREAM.LIST.
PAGE_STREAMS = 256


async def read_unmanaged(
    pool: Pool, domains: Mapping[str, Domain], wanted: Iterable[UnmanagedRequest], live: Live
) -> Live:
    """Return `live` with unmanaged objects; `unlisted` has the domains that forbid it.

    Costs nothing where the account has no more streams, and the stream no more consumers, than are
    known.
    """
    live = live.copy()
    await asyncio.gather(
        *(_read_domain(pool.api(domains[request.domain]), request, live) for request in wanted)
    )
    return live


async def _read_domain(api: DomainApi, wanted: UnmanagedRequest, live: Live) -> None:
    try:
        if (wanted.subjects or wanted.all_streams) and _has_unmanaged_streams(wanted.domain, live):
            await _read_streams(api, wanted, live)
        known = Counter(address.parent for address in live.objects if address.kind == "consumer")
        for stream in wanted.streams:
            if _count_consumers(stream, live) > known[stream]:
                await _read_consumers(api, stream, live)
    except ApiError as error:
        live.unlisted[wanted.domain] = str(error)


def _has_unmanaged_streams(domain: str, live: Live) -> bool:
    known = sum(1 for _ in live.streams(domain))
    return live.domains[domain].streams > known


def _count_consumers(stream: Address, live: Live) -> int:
    """Return how many consumers the stream has; 0 if it was not found."""
    found = live.get(stream)
    return int(found.state.get("consumer_count") or 0) if found is not None else 0


async def _read_streams(api: DomainApi, wanted: UnmanagedRequest, live: Live) -> None:
    """Read streams by subject where these are few, else all page by page, for fewer requests."""
    pages = 1 + live.domains[wanted.domain].streams // PAGE_STREAMS
    if wanted.all_streams or len(wanted.subjects) > 4 * pages:
        infos, offline = await api.streams()
        for name, why in offline.items():
            live.unreadable.setdefault(Address.of_stream(wanted.domain, name), why)
        for info in infos:
            address = Address.of_stream(wanted.domain, info["config"]["name"])
            live.objects.setdefault(
                address,
                LiveObject(
                    address,
                    info["config"],
                    info["created"],
                    info["state"],
                    info.get("cluster") or {},
                ),
            )
        return
    names_by_subject = await asyncio.gather(
        *(_list_names(api, subject) for subject in wanted.subjects)
    )
    addresses = {
        Address.of_stream(wanted.domain, name) for names in names_by_subject for name in names
    }

    async def read(address: Address) -> None:
        try:
            unmanaged = await read_object(api, address)
        except ServerRefusedError as error:
            live.unreadable[address] = error.description
        else:
            live.objects |= {address: unmanaged} if unmanaged is not None else {}

    await run_parallel(
        read,
        sorted(
            address
            for address in addresses
            if live.get(address) is None and address not in live.unreadable
        ),
    )


async def _read_consumers(api: DomainApi, stream: Address, live: Live) -> None:
    infos, offline = await api.consumers(stream.stream)
    addresses = {
        name: Address(stream.domain, "consumer", f"{stream.stream}/{name}")
        for name in (*offline, *(info["name"] for info in infos))
    }
    for name, why in offline.items():
        live.unreadable.setdefault(addresses[name], why)
    for info in infos:
        address = addresses[info["name"]]
        live.objects.setdefault(address, parse_consumer(address, info))


async def _list_names(api: DomainApi, subject: str) -> list[str]:
    """Return the streams with a subject. One that moves meanwhile may appear twice."""
    return [
        name
        async for page in api.pages("STREAM.NAMES", "streams", {"subject": subject})
        for name in page.get("streams") or ()
    ]
