"""Which range an entry means: asked once, then kept in state, so that a run that is repeated copies the same messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jsplan.address import Address
from jsplan.backfill.model import (
    BackfillState,
    OriginState,
    find_stored_state,
    hash_config,
    make_ad_hoc_entry,
)
from jsplan.backfill.options import BackfillOptions
from jsplan.backfill.parquet.location import check_archives, pin_parquet_origins
from jsplan.backfill.protocol.stream_info import find_first_seq_at, parse_time
from jsplan.backfill.strategy import find_read_obstacle, find_target_problem, has_strategy_choice
from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.config.model import Backfill, BackfillSide, Domain
from jsplan.context import Context
from jsplan.errors import JsplanError, UsageError
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.contexts import resolve_settings
from jsplan.units import format_timestamp


@dataclass(slots=True)
class Endpoints:
    """Both ends of one leg: how they are asked, and how tasks reach them."""

    origin: DomainApi
    target: DomainApi
    source_endpoint: Endpoint
    target_endpoint: Endpoint
    origin_domain_name: str

    @classmethod
    def of_domains(cls, world: Context, pool: Pool, origin: Domain, target: Domain) -> Endpoints:
        """`origin_domain_name` is what the origin's domain is called in `Jsplan-Origin`."""
        export_domains(world, (origin, target))
        return cls(
            pool.api(origin),
            pool.api(target),
            Endpoint(origin.connection, origin.api_prefix),
            Endpoint(target.connection, target.api_prefix),
            origin.js_domain or origin.key,
        )

    @classmethod
    def of_origin(cls, world: Context, pool: Pool, leg: OriginState) -> Endpoints:
        """The ends that a leg names."""
        origin, target = (
            world.workspace.domains[address.domain]
            for address in (leg.origin_address, leg.target_address)
        )
        return cls.of_domains(world, pool, origin, target)


def export_domains(world: Context, domains: Iterable[Domain]) -> None:
    """Let tasks that are started from now on reach the domains."""
    for domain in domains:
        export_connection(
            resolve_settings(world.workspace.connections[domain.connection], world.environ)
        )


def export_endpoints(world: Context, entry: Backfill) -> None:
    """Let tasks that are started from now on reach every end of an entry."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is None]
    export_domains(world, (world.workspace.domains[side.domain] for side in sides))


def resolve_entry(world: Context, options: BackfillOptions) -> Backfill:
    """The entry that is meant, or one made of two addresses. Raises UsageError, and NotAvailableError for what cannot be done."""
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
    """What state keeps of the entry, if its text is still the same."""
    return find_stored_state(world.state.backfills, entry)


async def pin_ranges(world: Context, pool: Pool, entry: Backfill) -> BackfillState:
    """Ask for the range of each origin. Raises JsplanError for what cannot be copied or into what nothing can be."""
    legs = [
        leg for side in entry.origins for leg in await _pin_origins(world, pool, side, entry.target)
    ]
    if not has_strategy_choice(entry):
        await _require_readable(world, pool, entry)
    return BackfillState(entry.name, hash_config(entry), legs, format_timestamp())


async def _require_readable(world: Context, pool: Pool, entry: Backfill) -> None:
    """Raise JsplanError where an origin can be read by nothing but its own consumers."""
    for side in (side for side in entry.origins if side.parquet is None):
        info = await require_stream_info(
            pool.api(world.workspace.domains[side.domain]), side.stream
        )
        if why := find_read_obstacle(info["config"]):
            raise JsplanError(
                f"{side} cannot be copied: {why}", hint="A source can take what comes from now on."
            )


async def _pin_origins(
    world: Context, pool: Pool, side: BackfillSide, to: BackfillSide
) -> list[OriginState]:
    """The leg of an origin; of an archive one for each stream that it has."""
    domains = world.workspace.domains
    if side.parquet is not None:
        target = await require_stream_info(pool.api(domains[to.domain]), to.stream)
        require_valid_target(str(to), target["config"])
        return await pin_parquet_origins(world, side.parquet, str(to), target)
    if to.parquet is not None:
        ends = Endpoints.of_domains(world, pool, domains[side.domain], domains[side.domain])
        origin = await require_stream_info(ends.origin, side.stream)
        return [
            OriginState(
                str(side),
                to.parquet,
                origin["created"],
                *resolve_bounds(ends, side, origin),
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
    ends = Endpoints.of_domains(world, pool, domains[side.domain], domains[to.domain])
    origin, target = (
        await require_stream_info(ends.origin, side.stream),
        await require_stream_info(ends.target, to.stream),
    )
    if (domains[side.domain].key, side.stream) == (domains[to.domain].key, to.stream):
        raise JsplanError(f"{side} cannot be copied into itself")
    require_valid_target(str(to), target["config"])
    first, last = resolve_bounds(ends, side, origin)
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


def resolve_bounds(ends: Endpoints, side: BackfillSide, info: dict[str, Any]) -> tuple[int, int]:
    """First and last sequence, both included. Without a start it is the first message that there is."""
    state, prefix = info["state"], ends.origin.domain.api_prefix
    first, last = (
        side.start_seq or int(state["first_seq"]),
        min(side.end_seq or int(state["last_seq"]), int(state["last_seq"])),
    )
    if side.start_time is not None or side.end_time is not None:
        wire = ends.source_endpoint.open()
        try:
            if side.start_time is not None:
                first = find_first_seq_at(wire, prefix, side.stream, parse_time(side.start_time))
            if side.end_time is not None:
                last = min(
                    last,
                    find_first_seq_at(wire, prefix, side.stream, parse_time(side.end_time) + 1) - 1,
                )
        finally:
            wire.close()
    return max(1, first), last


def require_valid_target(address: str, config: dict[str, Any]) -> None:
    """Raise JsplanError for a stream into which nothing can be copied exactly once."""
    why, hint = find_target_problem(config)
    if why:
        raise JsplanError(f"{address} {why}", hint=hint or None)


def require_same_streams(leg: OriginState, origin: dict[str, Any], target: dict[str, Any]) -> None:
    """Raise JsplanError where either end is another stream than the one whose range was pinned. A plan may not know the target yet."""
    for address, then, now in (
        (leg.origin, leg.created, origin["created"]),
        (leg.target, leg.target_created, target["created"]),
    ):
        if then and then != now:
            raise JsplanError(
                f"{address} was made anew ({now}) since the range of this backfill was pinned: its sequences mean other messages now",
                hint="Run it with --reset-range to pin the range of the new stream.",
            )
