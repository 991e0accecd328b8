"""Which range an entry means: asked once, then kept in state, so that a run that is repeated copies the same messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jsplan.address import Address
from jsplan.backfill.choosing import can_be_chosen, unfit, unreadable
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.ways import Way, export
from jsplan.backfill.records import Leg, Record, between_two, kept, text_of
from jsplan.backfill.wire.asking import first_at, from_text
from jsplan.config.model import Backfill, BackfillSide, Domain
from jsplan.errors import JsplanError, UsageError
from jsplan.jetstream import DomainApi, Pool
from jsplan.jetstream.contexts import resolve
from jsplan.units import stamp
from jsplan.workflows.backfill.archives import archived_legs, check_archives
from jsplan.workflows.backfill.options import BackfillOptions
from jsplan.workflows.world import World


@dataclass(slots=True)
class Ends:
    """Both ends of one leg: how they are asked, and how tasks reach them."""

    origin: DomainApi
    target: DomainApi
    source_way: Way
    target_way: Way
    identity: str

    @classmethod
    def of(cls, world: World, pool: Pool, origin: Domain, target: Domain) -> Ends:
        """`identity` is what the origin's domain is called in `Jsplan-Origin`."""
        export_domains(world, (origin, target))
        return cls(
            pool.api(origin), pool.api(target), Way(origin.connection, origin.api_prefix), Way(target.connection, target.api_prefix),
            origin.js_domain or origin.key,
        )  # fmt: skip

    @classmethod
    def of_leg(cls, world: World, pool: Pool, leg: Leg) -> Ends:
        """The ends that a leg names."""
        origin, target = (world.workspace.domains[address.domain] for address in (leg.origin_address, leg.target_address))
        return cls.of(world, pool, origin, target)


def export_domains(world: World, domains: Iterable[Domain]) -> None:
    """Let tasks that are started from now on reach the domains."""
    for domain in domains:
        export(resolve(world.workspace.connections[domain.connection], world.environ))


def export_ends(world: World, entry: Backfill) -> None:
    """Let tasks that are started from now on reach every end of an entry."""
    sides = [side for side in (*entry.origins, entry.target) if side.parquet is None]
    export_domains(world, (world.workspace.domains[side.domain] for side in sides))


def entry_of(world: World, options: BackfillOptions) -> Backfill:
    """The entry that is meant, or one made of two addresses. Raises UsageError, and NotAvailableError for what cannot be done."""
    if options.name is not None:
        found = world.workspace.backfills.get(options.name)
        if found is None:
            names = ", ".join(world.workspace.backfills)
            hint = f"The files declare: {names}." if names else "The files declare none. Or name both ends: --from ADDRESS --to ADDRESS"
            raise UsageError(f"there is no backfill {options.name}", hint=hint)
    else:
        origin, target = (_stream(world, text or "") for text in (options.origin, options.target))
        found = between_two(origin, target)
    check_archives(world, found)
    return found


def _stream(world: World, text: str) -> Address:
    try:
        address = Address.parse(text)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if address.kind == "consumer" or address.domain not in world.workspace.domains:
        raise UsageError(f"{text} is no stream of a declared domain", hint="Write DOMAIN/stream/NAME.")
    return address


def record_of(world: World, entry: Backfill) -> Record | None:
    """What state keeps of the entry, if its text is still the same."""
    return kept(world.state.backfills, entry)


async def freeze(world: World, pool: Pool, entry: Backfill) -> Record:
    """Ask for the range of each origin. Raises JsplanError for what cannot be copied or into what nothing can be."""
    legs = [leg for side in entry.origins for leg in await _legs(world, pool, side, entry.target)]
    if not can_be_chosen(entry):
        await _require_readable(world, pool, entry)
    return Record(entry.name, text_of(entry), legs, stamp())


async def _require_readable(world: World, pool: Pool, entry: Backfill) -> None:
    """Raise JsplanError where an origin can be read by nothing but its own consumers."""
    for side in (side for side in entry.origins if side.parquet is None):
        info = await target_info(pool.api(world.workspace.domains[side.domain]), side.stream)
        if why := unreadable(info["config"]):
            raise JsplanError(f"{side} cannot be copied: {why}", hint="A source can take what comes from now on.")


async def _legs(world: World, pool: Pool, side: BackfillSide, to: BackfillSide) -> list[Leg]:
    """The leg of an origin; of an archive one for each stream that it has."""
    domains = world.workspace.domains
    if side.parquet is not None:
        target = await target_info(pool.api(domains[to.domain]), to.stream)
        refuse_target(str(to), target["config"])
        return await archived_legs(world, side.parquet, str(to), target)
    if to.parquet is not None:
        ends = Ends.of(world, pool, domains[side.domain], domains[side.domain])
        origin = await target_info(ends.origin, side.stream)
        return [Leg(str(side), to.parquet, origin["created"], *bounds(ends, side, origin), list(side.filters), "", 0)]
    return [await _leg(world, pool, side, to)]


async def _leg(world: World, pool: Pool, side: BackfillSide, to: BackfillSide) -> Leg:
    domains = world.workspace.domains
    ends = Ends.of(world, pool, domains[side.domain], domains[to.domain])
    origin, target = await target_info(ends.origin, side.stream), await target_info(ends.target, to.stream)
    if (domains[side.domain].key, side.stream) == (domains[to.domain].key, to.stream):
        raise JsplanError(f"{side} cannot be copied into itself")
    refuse_target(str(to), target["config"])
    first, last = bounds(ends, side, origin)
    return Leg(
        str(side), str(to), origin["created"], first, last, list(side.filters), target["created"], int(target["state"]["last_seq"]) + 1
    )


def bounds(ends: Ends, side: BackfillSide, info: dict[str, Any]) -> tuple[int, int]:
    """First and last sequence, both included. Without a start it is the first message that there is."""
    state, prefix = info["state"], ends.origin.domain.api_prefix
    first, last = side.start_seq or int(state["first_seq"]), min(side.end_seq or int(state["last_seq"]), int(state["last_seq"]))
    if side.start_time is not None or side.end_time is not None:
        wire = ends.source_way.open()
        try:
            if side.start_time is not None:
                first = first_at(wire, prefix, side.stream, from_text(side.start_time))
            if side.end_time is not None:
                last = min(last, first_at(wire, prefix, side.stream, from_text(side.end_time) + 1) - 1)
        finally:
            wire.close()
    return max(1, first), last


def refuse_target(address: str, config: dict[str, Any]) -> None:
    """Raise JsplanError for a stream into which nothing can be copied exactly once."""
    why, hint = unfit(config)
    if why:
        raise JsplanError(f"{address} {why}", hint=hint or None)


def require_same(leg: Leg, origin: dict[str, Any], target: dict[str, Any]) -> None:
    """Raise JsplanError where either end is another stream than the one whose range was pinned. A plan may not know the target yet."""
    for address, then, now in ((leg.origin, leg.created, origin["created"]), (leg.target, leg.target_created, target["created"])):
        if then and then != now:
            raise JsplanError(
                f"{address} was made anew ({now}) since the range of this backfill was pinned: its sequences mean other messages now",
                hint="Run it with --reset-range to pin the range of the new stream.",
            )
