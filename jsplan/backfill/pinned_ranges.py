"""The range that a run copies: the one that state keeps, or pinned now. One that a plan has pinned gets what only a run can know: the
stream that it goes into, and what origins have that were away then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from jsplan.backfill.model import BackfillState, OriginState, match_origin_states
from jsplan.backfill.partitioned_run import needs_partitions
from jsplan.backfill.pinning import Endpoints, load_stored_state, pin_ranges, require_valid_target
from jsplan.backfill.protocol.stream_info import find_first_seq_at, parse_time
from jsplan.backfill.strategy_copy import select_strategy
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.config.model import Backfill
from jsplan.context import Context
from jsplan.jetstream import Pool

SaveState = Callable[[BackfillState], Awaitable[None]]


async def load_or_complete(
    world: Context, pool: Pool, entry: Backfill, keep: SaveState, *, reset_range: bool
) -> BackfillState | None:
    """What state keeps, unless the range is to be pinned anew; completed, and kept so, where a plan has pinned it.

    Raises RefusedError for a strategy that is not possible, and what `complete_state` raises.
    """
    record = load_stored_state(world, entry) if not reset_range else None
    if record is not None and record.planned:
        wide = needs_partitions(entry)
        await pool.open(domain.connection for domain in world.workspace.domains.values())
        new = [leg for leg in record.origins if not leg.target_created]
        strategy = "spark" if wide else (await select_strategy(world, pool, entry)).strategy
        await complete_state(world, pool, entry, record, whole=not wide)
        for leg in new:
            leg.strategy = strategy
        await keep(record)
    return record


async def pin_and_save(
    world: Context, pool: Pool, entry: Backfill, keep: SaveState
) -> BackfillState:
    """The range as it is now, kept. Raises what `pin_ranges` raises, and RefusedError for a strategy that is not possible."""
    choice = await select_strategy(world, pool, entry)
    record = await pin_ranges(world, pool, entry)
    for leg in record.origins:
        leg.strategy = choice.strategy
    await keep(record)
    return record


async def complete_state(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState, *, whole: bool
) -> None:
    """Complete a record that waits for its first run. `whole`: with every origin of the entry, also those that the plan could not read.

    Raises JsplanError for what cannot be copied, or into what nothing can be, and ApiError.
    """
    record.origins += [await _pin_unread(world, pool, entry, one) for one in record.unmeasured]
    record.unmeasured = []
    if whole and not any(leg.source for leg in record.origins):
        found = zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
        record.origins = [
            leg or (await pin_ranges(world, pool, replace(entry, origins=(side,)))).origins[0]
            for side, leg in found
        ]
    if entry.target.parquet is None:
        await _complete_target(world, pool, entry, record)
    record.planned = False


async def _pin_unread(
    world: Context, pool: Pool, entry: Backfill, unread: dict[str, Any]
) -> OriginState:
    """What a source leaves out whose origin was away when it was planned."""
    side = replace(entry.origins[0], filters=tuple(unread["filters"]))
    leg = (await pin_ranges(world, pool, replace(entry, origins=(side,)))).origins[0]
    ends = Endpoints.of_origin(world, pool, leg)
    end = (
        int(unread["end_seq"])
        if "end_seq" in unread
        else await asyncio.to_thread(_find_seq_before, ends, side.stream, unread["before"])
    )
    leg.last, leg.source = min(leg.last, end), unread["source"]
    return leg


def _find_seq_before(ends: Endpoints, stream: str, time: str) -> int:
    """The sequence before a time."""
    wire = ends.source_endpoint.open()
    try:
        return (
            find_first_seq_at(wire, ends.source_endpoint.api_prefix, stream, parse_time(time)) - 1
        )
    finally:
        wire.close()


async def _complete_target(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState
) -> None:
    """Which stream it goes into, and what comes next there: where a plan pinned the range it may not have been there yet."""
    info = await require_stream_info(
        pool.api(world.workspace.domains[entry.target.domain]), entry.target.stream
    )
    require_valid_target(str(entry.target), info["config"])
    for leg in record.origins:
        if not leg.target_created:
            leg.target_created, leg.target_next = (
                info["created"],
                int(info["state"]["last_seq"]) + 1,
            )
