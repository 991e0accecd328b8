"""The range that a run copies: the one that state keeps, or pinned now. One that a plan has pinned gets what only a run can know: the
stream that it goes into, and what origins have that were away then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.records import Leg, Record, legs_of
from jsplan.backfill.wire.asking import first_at, from_text
from jsplan.config.model import Backfill
from jsplan.jetstream import Pool
from jsplan.workflows.backfill.freeze import Ends, freeze, record_of, refuse_target
from jsplan.workflows.backfill.tools import chosen
from jsplan.workflows.backfill.wide import is_wide
from jsplan.workflows.world import World

Keep = Callable[[Record], Awaitable[None]]


async def taken_up(world: World, pool: Pool, entry: Backfill, keep: Keep, *, reset_range: bool) -> Record | None:
    """What state keeps, unless the range is to be pinned anew; completed, and kept so, where a plan has pinned it.

    Raises RefusedError for a strategy that is not possible, and what `take_up` raises.
    """
    record = record_of(world, entry) if not reset_range else None
    if record is not None and record.planned:
        wide = is_wide(entry)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        new = [leg for leg in record.origins if not leg.target_created]
        strategy = "spark" if wide else (await chosen(world, pool, entry)).strategy
        await take_up(world, pool, entry, record, whole=not wide)
        for leg in new:
            leg.strategy = strategy
        await keep(record)
    return record


async def frozen(world: World, pool: Pool, entry: Backfill, keep: Keep) -> Record:
    """The range as it is now, kept. Raises what `freeze` raises, and RefusedError for a strategy that is not possible."""
    choice = await chosen(world, pool, entry)
    record = await freeze(world, pool, entry)
    for leg in record.origins:
        leg.strategy = choice.strategy
    await keep(record)
    return record


async def take_up(world: World, pool: Pool, entry: Backfill, record: Record, *, whole: bool) -> None:
    """Complete a record that waits for its first run. `whole`: with every origin of the entry, also those that the plan could not read.

    Raises JsplanError for what cannot be copied, or into what nothing can be, and ApiError.
    """
    record.origins += [await _read(world, pool, entry, one) for one in record.unmeasured]
    record.unmeasured = []
    if whole and not any(leg.source for leg in record.origins):
        found = zip(entry.origins, legs_of(record, entry.origins), strict=True)
        record.origins = [leg or (await freeze(world, pool, replace(entry, origins=(side,)))).origins[0] for side, leg in found]
    if entry.target.parquet is None:
        await _going_into(world, pool, entry, record)
    record.planned = False


async def _read(world: World, pool: Pool, entry: Backfill, unread: dict[str, Any]) -> Leg:
    """What a source leaves out whose origin was away when it was planned."""
    side = replace(entry.origins[0], filters=tuple(unread["filters"]))
    leg = (await freeze(world, pool, replace(entry, origins=(side,)))).origins[0]
    ends = Ends.of_leg(world, pool, leg)
    end = int(unread["end_seq"]) if "end_seq" in unread else await asyncio.to_thread(_before, ends, side.stream, unread["before"])
    leg.last, leg.source = min(leg.last, end), unread["source"]
    return leg


def _before(ends: Ends, stream: str, time: str) -> int:
    """The sequence before a time."""
    wire = ends.source_way.open()
    try:
        return first_at(wire, ends.source_way.api_prefix, stream, from_text(time)) - 1
    finally:
        wire.close()


async def _going_into(world: World, pool: Pool, entry: Backfill, record: Record) -> None:
    """Which stream it goes into, and what comes next there: where a plan pinned the range it may not have been there yet."""
    info = await target_info(pool.api(world.workspace.domains[entry.target.domain]), entry.target.stream)
    refuse_target(str(entry.target), info["config"])
    for leg in record.origins:
        if not leg.target_created:
            leg.target_created, leg.target_next = info["created"], int(info["state"]["last_seq"]) + 1
