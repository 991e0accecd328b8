"""Reads unmanaged objects: all of a domain, or those that a plan affects. Never writes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from jsplan.address import (
    BACKFILL_PREFIX,
    INTERNAL_CONSUMER_PREFIXES,
    STAGING_PREFIX,
    STATE_TAG,
    Address,
)
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS, ApiError, NotPermittedError, ServerRefusedError
from jsplan.facts.domains import mark_offline, require_reachable
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.measurement import UnmanagedRequest
from jsplan.facts.reader import PAGE, list_consumers_into, list_streams_into, read_into
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.error_codes import STREAM_NOT_FOUND

#: Internal streams, which are never planned or imported, nor listed but by drift.
OWN_STREAMS = ("$MQTT_", STAGING_PREFIX)

T = TypeVar("T")


def may_be_listed(address: Address) -> bool:
    """Return True unless its name is internal to the server or jsplan, or it is only an entry."""
    return (
        not address.is_content
        and not address.stream.startswith(OWN_STREAMS)
        and not (
            address.kind == "consumer" and address.consumer.startswith(INTERNAL_CONSUMER_PREFIXES)
        )
    )


def is_state_bucket(found: LiveObject) -> bool:
    """Return True for a bucket that keeps the state of a workspace. It is no resource."""
    key, value = STATE_TAG
    return found.address.kind == "kv" and (found.raw.get("metadata") or {}).get(key) == value


async def ask_if_permitted(asked: Awaitable[T], key: str, live: Live) -> T | None:
    """Return the answer; None without permission, with the reason in `live.unlisted`."""
    try:
        return await asked
    except NotPermittedError as error:
        live.unlisted.setdefault(key, str(error))
        return None


# --- all of them ----------------------------------------------------------------------------------


async def list_unmanaged(
    pool: Pool, domains: Mapping[str, Domain], live: Live, managed: Iterable[Address]
) -> list[LiveObject]:
    """List streams, buckets and consumers that are not in `managed`, in address order.

    A `same_as` domain is another connection to a domain that is already listed. Where listing is
    not permitted, the reason is in `live.unlisted`. A domain that stops answering counts as offline
    from then on; raises ConnectError where that was the last one.
    """
    managed, found = set(managed), Live()
    for key in sorted(live.domains):
        if live.is_reachable(key) and domains[key].is_own:
            api = pool.api(domains[key])
            try:
                names = await _list_unmanaged_names(api, live, managed)
                await ask_if_permitted(read_into(api, found, names), key, live)
            except OFFLINE_ERRORS as error:
                mark_offline(live, key, error)
    require_reachable(pool, live)
    return [each for _, each in sorted(found.objects.items()) if not is_state_bucket(each)]


async def _list_unmanaged_names(api: DomainApi, live: Live, managed: set[Address]) -> list[Address]:
    """List what is not managed in a domain, by the names of its streams and consumers.

    Consumers only of managed streams that have more than are known.
    """
    key = api.domain.key
    names = await ask_if_permitted(api.stream_names(), key, live) or []
    found = [Address.of_stream(key, name) for name in names]
    known = Counter(a.parent for a in managed if a.kind == "consumer" and live.get(a) is not None)
    for stream in live.streams(key):
        parent = stream.address
        if (
            parent.kind != "stream"
            or not may_be_listed(parent)
            or stream.state.get("consumer_count", 0) <= known[parent]
        ):
            continue
        listed = await ask_if_permitted(_consumer_names(api, parent.stream), key, live) or []
        found += [Address(key, "consumer", f"{parent.stream}/{name}") for name in listed]
    return [a for a in found if a not in managed and (may_be_listed(a) or _is_left(a))]


def _is_left(address: Address) -> bool:
    """Check for a stream that a transfer has left, if it is none that state knows."""
    name = address.stream
    is_staging = name.startswith(STAGING_PREFIX) and not name.startswith(BACKFILL_PREFIX)
    return address.is_stream and is_staging


async def _consumer_names(api: DomainApi, stream: str) -> list[str]:
    """Return the names; none where the stream was deleted or is being recreated."""
    try:
        return await api.consumer_names(stream)
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return []


# --- those that a plan affects --------------------------------------------------------------------


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
        more = [
            stream for stream in wanted.streams if _count_consumers(stream, live) > known[stream]
        ]
        await list_consumers_into(api, live, more)
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
    pages = 1 + live.domains[wanted.domain].streams // PAGE
    if wanted.all_streams or len(wanted.subjects) > 4 * pages:
        await list_streams_into(api, live)
        return
    names_by_subject = await asyncio.gather(
        *(_list_names(api, subject) for subject in wanted.subjects)
    )
    addresses = {
        Address.of_stream(wanted.domain, name) for names in names_by_subject for name in names
    }
    unread = addresses - live.objects.keys() - live.unreadable.keys()
    await read_into(api, live, sorted(unread))


async def _list_names(api: DomainApi, subject: str) -> list[str]:
    """Return the streams with a subject. One that moves meanwhile may appear twice."""
    return [
        name
        async for page in api.pages("STREAM.NAMES", "streams", {"subject": subject})
        for name in page.get("streams") or ()
    ]
