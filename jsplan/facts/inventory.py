"""Unmanaged objects in a domain, for import and drift."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from typing import TypeVar

from jsplan.address import INTERNAL_CONSUMER_PREFIXES, STAGING_PREFIX, STATE_TAG, Address
from jsplan.config.model import Domain
from jsplan.errors import OFFLINE_ERRORS, NotPermittedError, ServerRefusedError
from jsplan.facts.live import Live, LiveObject
from jsplan.facts.reader import mark_offline, read_object, require_reachable, run_parallel
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.error_codes import STREAM_NOT_FOUND

#: Internal streams, which are never planned, imported or listed.
OWN_STREAMS = ("$MQTT_", STAGING_PREFIX)

T = TypeVar("T")


async def list_unmanaged(
    pool: Pool, domains: Mapping[str, Domain], live: Live, managed: Iterable[Address]
) -> list[LiveObject]:
    """List streams, buckets and consumers that are not in `managed`, in address order.

    A `same_as` domain is another connection to a domain that is already listed. Costs one INFO for
    each found. Where listing is not permitted, the reason is in `live.unlisted`. A domain that
    stops answering counts as offline from then on; raises ConnectError where that was the last one.
    """
    managed = set(managed)
    found: list[LiveObject] = []
    for key in sorted(live.domains):
        if live.is_reachable(key) and domains[key].same_as is None:
            try:
                found += await _list_in_domain(pool, domains[key], live, managed)
            except OFFLINE_ERRORS as error:
                mark_offline(live, key, error)
    require_reachable(pool, live)
    return sorted(found, key=lambda o: o.address)


async def _list_in_domain(
    pool: Pool, domain: Domain, live: Live, managed: set[Address]
) -> list[LiveObject]:
    api = pool.api(domain)
    names = await ask_if_permitted(api.stream_names(), domain.key, live) or []
    names = [name for name in names if not name.startswith(OWN_STREAMS)]
    addresses = [
        a for a in (Address.of_stream(domain.key, name) for name in names) if a not in managed
    ]
    for stream in _streams_with_unmanaged(domain.key, live, managed):
        consumers = await ask_if_permitted(_consumer_names(api, stream), domain.key, live) or []
        names_here = (
            Address(domain.key, "consumer", f"{stream}/{name}")
            for name in consumers
            if not name.startswith(INTERNAL_CONSUMER_PREFIXES)
        )
        addresses += [a for a in names_here if a not in managed]
    found: list[LiveObject] = []

    async def read(address: Address) -> None:
        live_object = await ask_if_permitted(read_object(api, address), domain.key, live)
        if live_object is not None and not is_state_bucket(live_object):
            found.append(live_object)

    await run_parallel(read, addresses)
    return found


async def ask_if_permitted(asked: Awaitable[T], key: str, live: Live) -> T | None:
    """Return the answer; None without permission, with the reason in `live.unlisted`."""
    try:
        return await asked
    except NotPermittedError as error:
        live.unlisted.setdefault(key, str(error))
        return None


async def _consumer_names(api: DomainApi, stream: str) -> list[str]:
    """Return the names; none where the stream was deleted or is being recreated."""
    try:
        return await api.consumer_names(stream)
    except ServerRefusedError as error:
        if error.err_code != STREAM_NOT_FOUND:
            raise
        return []


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


def _streams_with_unmanaged(domain: str, live: Live, managed: set[Address]) -> list[str]:
    """Return managed streams that have more consumers than we know of."""
    known: dict[str, int] = {}
    for address in managed:
        if (
            address.kind == "consumer"
            and address.domain == domain
            and live.get(address) is not None
        ):
            known[address.stream] = known.get(address.stream, 0) + 1
    streams = (
        o
        for o in live.streams(domain)
        if o.state.get("consumer_count", 0) > known.get(o.address.stream, 0)
    )
    return [
        o.address.stream
        for o in streams
        if o.address.kind == "stream" and not o.address.stream.startswith(OWN_STREAMS)
    ]
