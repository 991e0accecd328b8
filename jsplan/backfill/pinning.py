"""The pinned range of an entry, which a repeated run reads from state."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from jsplan.address import Address
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.parquet.location import check_archives, pin_parquet_origins
from jsplan.backfill.protocol.stream_info import find_first_seq_at
from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.config.model import Backfill, BackfillSide, Domain
from jsplan.context import Context
from jsplan.errors import JsplanError, UsageError
from jsplan.identity import KnownObject, is_clustered, is_same_object
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.contexts import resolve_settings
from jsplan.planning.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    make_ad_hoc_entry,
)
from jsplan.planning.backfill.strategy import (
    find_read_obstacle,
    find_target_problem,
    has_strategy_choice,
)
from jsplan.units import format_timestamp, parse_instant


class Endpoints(Struct):
    """The APIs of origin and target, and the connections of tasks to them."""

    origin: DomainApi
    target: DomainApi
    source_endpoint: Endpoint
    target_endpoint: Endpoint
    origin_domain_name: str

    @classmethod
    def of_domains(cls, world: Context, pool: Pool, origin: Domain, target: Domain) -> Endpoints:
        """Build endpoints; `origin_domain_name` is the name of the domain in `Jsplan-Origin`."""
        export_domains(world, (origin, target))
        return cls(
            pool.api(origin),
            pool.api(target),
            Endpoint(origin.connection, origin.api_prefix),
            Endpoint(target.connection, target.api_prefix),
            origin.js_domain or origin.key,
        )

    @classmethod
    def of_origin(cls, world: Context, pool: Pool, origin_state: OriginState) -> Endpoints:
        """Build the endpoints of an origin state."""
        origin, target = (
            world.workspace.domains[address.domain]
            for address in (origin_state.origin_address, origin_state.target_address)
        )
        return cls.of_domains(world, pool, origin, target)


def export_domains(world: Context, domains: Iterable[Domain]) -> None:
    """Export the connections of domains to tasks that start later."""
    for domain in domains:
        connection = world.workspace.connections[domain.connection]
        export_connection(resolve_settings(connection, world.environ), connection.declared)


def export_endpoints(world: Context, entry: Backfill) -> None:
    """Export the connections of all sides of an entry to tasks that start later."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is None]
    export_domains(world, (world.workspace.domains[side.domain] for side in sides))


def resolve_entry(world: Context, options: BackfillOptions) -> Backfill:
    """Return the entry of the options, or build one for two addresses.

    Raises UsageError, and NotAvailableError if it is not possible.
    """
    if options.name is not None:
        found = world.workspace.backfills.get(options.name)
        if found is None:
            names = ", ".join(world.workspace.backfills)
            hint = (
                f"The files declare: {names}."
                if names
                else "The files declare none. Or name both ends: --from ADDRESS --to ADDRESS"
            )
            raise UsageError(f"there is no backfill {options.name}", hint=hint)
    else:
        origin, target = (
            _parse_stream_address(world, text or "") for text in (options.origin, options.target)
        )
        found = make_ad_hoc_entry(origin, target)
    check_archives(world, found)
    return found


def _parse_stream_address(world: Context, text: str) -> Address:
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if address.kind == "consumer" or address.domain not in world.workspace.domains:
        raise UsageError(
            f"{text} is no stream of a declared domain", hint="Write DOMAIN/stream/NAME."
        )
    return address


def load_stored_state(world: Context, entry: Backfill) -> BackfillState | None:
    """Load the state of the entry, if the entry has not changed since."""
    return find_stored_state(world.state.backfills, entry)


async def pin_ranges(world: Context, pool: Pool, entry: Backfill) -> BackfillState:
    """Read the range of each origin.

    Raises JsplanError for an origin that cannot be read and a target that cannot be filled.
    """
    origin_states = [
        origin_state
        for side in entry.origins
        for origin_state in await _pin_origins(world, pool, side, entry.target)
    ]
    if not has_strategy_choice(entry):
        await _require_readable(world, pool, entry)
    return BackfillState(entry.name, hash_config(entry), origin_states, format_timestamp())


async def pin_origin(
    world: Context, pool: Pool, entry: Backfill, side: BackfillSide
) -> list[OriginState]:
    """Read the range of one origin of an entry; of an archive, one for each of its streams.

    Raises what `pin_ranges` raises.
    """
    alone = dataclasses.replace(entry, origins=(side,))
    return (await pin_ranges(world, pool, alone)).origins


async def _require_readable(world: Context, pool: Pool, entry: Backfill) -> None:
    """Raise JsplanError if only its own consumers can read an origin."""
    for side in (side for side in entry.origins if side.parquet is None):
        info = await require_stream_info(
            pool.api(world.workspace.domains[side.domain]), side.stream
        )
        if why := find_read_obstacle(info["config"]):
            raise JsplanError(
                f"{side} cannot be copied: {why}", hint="A source can copy new messages."
            )


async def _pin_origins(
    world: Context, pool: Pool, side: BackfillSide, to: BackfillSide
) -> list[OriginState]:
    """Pin the range of an origin; of an archive, one for each of its streams."""
    domains = world.workspace.domains
    if side.parquet is not None:
        target = await require_stream_info(pool.api(domains[to.domain]), to.stream)
        require_valid_target(str(to), target["config"])
        return await pin_parquet_origins(world, side.parquet, str(to), target)
    if to.parquet is not None:
        endpoints = Endpoints.of_domains(world, pool, domains[side.domain], domains[side.domain])
        origin = await require_stream_info(endpoints.origin, side.stream)
        return [
            OriginState(
                str(side),
                to.parquet,
                origin["created"],
                *resolve_bounds(endpoints, side, origin),
                list(side.filters),
                "",
                0,
            )
        ]
    return [await _pin_stream(world, pool, side, to)]


async def _pin_stream(
    world: Context, pool: Pool, side: BackfillSide, to: BackfillSide
) -> OriginState:
    domains = world.workspace.domains
    endpoints = Endpoints.of_domains(world, pool, domains[side.domain], domains[to.domain])
    origin, target = (
        await require_stream_info(endpoints.origin, side.stream),
        await require_stream_info(endpoints.target, to.stream),
    )
    if (domains[side.domain].key, side.stream) == (domains[to.domain].key, to.stream):
        raise JsplanError(f"{side} cannot be copied into itself")
    require_valid_target(str(to), target["config"])
    first, last = resolve_bounds(endpoints, side, origin)
    return OriginState(
        str(side),
        str(to),
        origin["created"],
        first,
        last,
        list(side.filters),
        target["created"],
        int(target["state"]["last_seq"]) + 1,
    )


def resolve_bounds(
    endpoints: Endpoints, side: BackfillSide, info: dict[str, Any]
) -> tuple[int, int]:
    """Return the first and last sequence, both included. The default is the whole stream."""
    state, prefix = info["state"], endpoints.origin.domain.api_prefix
    first, last = (
        side.start_seq or int(state["first_seq"]),
        min(side.end_seq or int(state["last_seq"]), int(state["last_seq"])),
    )
    if side.start_time is not None or side.end_time is not None:
        connection = endpoints.source_endpoint.open()
        try:
            if side.start_time is not None:
                first = find_first_seq_at(
                    connection, prefix, side.stream, parse_instant(side.start_time)
                )
            if side.end_time is not None:
                last = min(
                    last,
                    find_first_seq_at(
                        connection, prefix, side.stream, parse_instant(side.end_time) + 1
                    )
                    - 1,
                )
        finally:
            connection.close()
    return max(1, first), last


def require_valid_target(address: str, config: dict[str, Any]) -> None:
    """Raise JsplanError for a target that cannot be filled exactly once."""
    why, hint = find_target_problem(config)
    if why:
        raise JsplanError(f"{address} {why}", hint=hint or None)


def require_same_streams(
    origin_state: OriginState, origin: dict[str, Any], target: dict[str, Any]
) -> None:
    """Raise JsplanError if origin or target was recreated after the range was pinned.

    A plan may not know the target yet.
    """
    for address, then, now in (
        (origin_state.origin, origin_state.created, origin),
        (origin_state.target, origin_state.target_created, target),
    ):
        require_same_stream(address, KnownObject(then, ""), now)


def require_same_stream(address: str, known: KnownObject, info: dict[str, Any]) -> KnownObject:
    """Return a stream as last seen. Raises JsplanError if it was recreated.

    `created` is empty before it is known.
    """
    now = str(info["created"])
    older = is_clustered(info.get("cluster") or {})
    if known.created and not is_same_object(known, now, may_be_older=older):
        raise JsplanError(
            f"{address} was recreated ({now}) after the range of this backfill was pinned. "
            "Its sequences no longer match",
            hint="Run it with --reset-range to pin the range of the new stream.",
        )
    return KnownObject(known.created or now, str(info.get("ts") or ""))
