"""Puts the live configuration, without data, on the embedded servers.

An existing object need not be one that the server would create: updates allow more, and rules
changed since. So an object that is refused is created with the fields that only a creation sets,
and then updated to the rest.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.errors import ApiError, ServerRefusedError
from jsplan.facts.live import LiveObject
from jsplan.facts.reader import read_object, run_parallel
from jsplan.facts.unmanaged import OWN_STREAMS
from jsplan.jetstream import DomainApi
from jsplan.planning.pauses import PAUSE
from jsplan.resources.fields import Config, strip_metadata

#: Seconds for one creation on a busy machine, and for a cluster to settle.
REQUEST_TIMEOUT = 30.0
#: Fields that only a creation sets, or that a creation checks against the rest of the account.
_CREATION_FIELDS: Final = (
    "name",
    "subjects",
    "retention",
    "storage",
    "mirror",
    "sources",
    "first_seq",
    "max_consumers",
    "max_bytes",
    "allow_msg_counter",
    "allow_msg_ttl",
    "persist_mode",
    "placement",
)
#: A time in the past is refused for a new consumer; updates do not check it.


class SeededObjects(Struct):
    """The objects on the embedded servers. `missing` has the reason for each other one."""

    created: dict[Address, LiveObject] = field(default_factory=dict)
    missing: dict[Address, str] = field(default_factory=dict)


async def seed_servers(
    api: DomainApi,
    streams: Iterable[LiveObject],
    consumers: Iterable[LiveObject],
    cluster: str | None,
) -> SeededObjects:
    """Create streams, origins first, then consumers. Raises ApiError without an answer."""
    seeds = SeededObjects()
    found = {o.address: o for o in streams}

    async def stream(address: Address) -> None:
        await _seed_object(
            seeds, found[address], lambda: _create_stream(api, found[address], cluster)
        )

    for batch in _order_by_origin(found.values()):
        await run_parallel(stream, batch)
    consumer_objects = {o.address: o for o in consumers}

    async def consumer(address: Address) -> None:
        if address.parent in seeds.missing:
            seeds.missing[address] = f"so is its stream {address.parent}"
        else:
            live = consumer_objects[address]
            await _seed_object(seeds, live, lambda: _create_consumer(api, live))

    await run_parallel(consumer, consumer_objects)
    return seeds


async def _seed_object(seeds: SeededObjects, live: LiveObject, make: Callable[[], Any]) -> None:
    try:
        await make()
    except ServerRefusedError as error:
        if not live.address.stream.startswith(OWN_STREAMS):
            seeds.missing[live.address] = (
                f"the embedded server refuses what is live: {error.description} ({error.err_code})"
            )
    else:
        seeds.created[live.address] = live


def _order_by_origin(streams: Iterable[LiveObject]) -> list[list[Address]]:
    """Return batches in which each stream follows its local origins. Cycles come last."""
    found = {
        o.address: {Address.of_stream(o.address.domain, name) for name in _local_origins(o.raw)}
        for o in streams
    }
    sorter = TopologicalSorter(
        {address: sorted(after & found.keys()) for address, after in found.items()}
    )
    try:
        sorter.prepare()
    except CycleError:
        return [sorted(found, key=lambda address: bool(found[address]))]
    batches = []
    while sorter.is_active():
        batches.append(sorted(sorter.get_ready()))
        sorter.done(*batches[-1])
    return batches


def _local_origins(config: Config) -> list[str]:
    origins = [config["mirror"]] if config.get("mirror") else []
    return [
        origin["name"]
        for origin in (*origins, *(config.get("sources") or ()))
        if not origin.get("external")
    ]


def client_config(config: Config, cluster: str | None = None) -> Config:
    """Return the configuration as a client sends it, without a placement in another cluster."""
    plain = {name: value for name, value in config.items() if name != "metadata"}
    if metadata := strip_metadata(config.get("metadata") or {}):
        plain["metadata"] = metadata
    placement = plain.get("placement") or {}
    if placement.get("cluster") not in (None, "", cluster):
        plain["placement"] = {name: value for name, value in placement.items() if name != "cluster"}
    return plain


async def _create_stream(api: DomainApi, live: LiveObject, cluster: str | None) -> None:
    config, name = client_config(live.raw, cluster), live.address.stream
    try:
        await api.request(f"STREAM.CREATE.{name}", config, timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        await _create_then_update(api, config)
        await _wait_until_stable(api, live.address)


async def _create_then_update(api: DomainApi, config: Config) -> None:
    name = config["name"]
    await api.request(
        f"STREAM.CREATE.{name}",
        {key: config[key] for key in _CREATION_FIELDS if key in config},
        timeout=REQUEST_TIMEOUT,
    )
    try:
        await api.request(f"STREAM.UPDATE.{name}", config, timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        await api.request(f"STREAM.DELETE.{name}", timeout=REQUEST_TIMEOUT)
        raise


async def _wait_until_stable(api: DomainApi, address: Address) -> None:
    """Wait until a cluster has the replicas of an update. Raises ApiError when it does not."""
    end = time.monotonic() + REQUEST_TIMEOUT
    while (
        (live := await read_object(api, address)) is not None
        and live.is_clustered
        and not live.is_stable
    ):
        if time.monotonic() > end:
            raise ApiError(f"the embedded cluster does not settle {address}")
        await asyncio.sleep(0.05)


async def _create_consumer(api: DomainApi, live: LiveObject) -> None:
    config, address = client_config(live.raw), live.address
    request = f"CONSUMER.CREATE.{address.stream}.{address.consumer}"

    def payload(config: Mapping[str, Any]) -> dict[str, Any]:
        return {"stream_name": address.stream, "config": config, "action": "create"}

    try:
        await api.request(request, payload(config), timeout=REQUEST_TIMEOUT)
    except ServerRefusedError:
        if PAUSE not in config:
            raise
        await api.request(
            request,
            payload({name: value for name, value in config.items() if name != PAUSE}),
            timeout=REQUEST_TIMEOUT,
        )
