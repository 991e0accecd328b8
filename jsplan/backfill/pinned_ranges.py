"""The range that a run copies: loaded from state or pinned now.

A range that a plan pinned is completed with the identity of the target and with origins that were
offline then.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from jsplan.backfill.pinning import load_stored_state, pin_origin, pin_ranges, require_valid_target
from jsplan.backfill.reachable_origins import pin_reachable_origins
from jsplan.backfill.strategy_selection import select_strategy
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import is_joint_copy, reads_archive
from jsplan.config.model import Backfill
from jsplan.context import Context
from jsplan.jetstream import Pool
from jsplan.planning.backfill.model import BackfillState, hash_config, match_origin_states
from jsplan.units import format_timestamp

SaveState = Callable[[BackfillState], Awaitable[None]]


async def load_or_pin(
    world: Context,
    pool: Pool,
    entry: Backfill,
    save: SaveState,
    offline: Collection[str] = (),
    *,
    reset_range: bool,
) -> BackfillState:
    """Load the ranges of an entry, and pin and save those that its state lacks.

    Origins of `offline` domains stay without. Raises RefusedError for a strategy that is not
    possible, and the errors of `complete_state` and `pin_ranges`.
    """
    record = load_stored_state(world, entry) if not reset_range else None
    if record is not None and record.planned:
        await _complete_planned(world, pool, entry, record)
        await save(record)
    if is_joint_copy(entry) and not reads_archive(entry):
        record = record or BackfillState(entry.name, hash_config(entry), [], format_timestamp())
        if await pin_reachable_origins(world, pool, entry, record, offline):
            await save(record)
    elif record is None:
        choice = await select_strategy(world, pool, entry)
        record = await pin_ranges(world, pool, entry)
        for origin_state in record.origins:
            origin_state.strategy = choice.strategy
        await save(record)
    return record


async def _complete_planned(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState
) -> None:
    """Complete a state before its first run, with the strategy."""
    joint = is_joint_copy(entry)
    new = [origin_state for origin_state in record.origins if not origin_state.target_created]
    strategy = "spark" if joint else (await select_strategy(world, pool, entry)).strategy
    await complete_state(world, pool, entry, record, whole=not joint)
    for origin_state in new:
        origin_state.strategy = strategy


async def complete_state(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState, *, whole: bool
) -> None:
    """Complete a state before its first run.

    `whole` adds every origin of the entry, also those that the plan could not read. Raises
    JsplanError for an origin that cannot be read and a target that cannot be filled, and ApiError.
    """
    if whole:
        matched = zip(entry.origins, match_origin_states(record, entry.origins), strict=True)
        record.origins = [
            origin_state or (await pin_origin(world, pool, entry, side))[0]
            for side, origin_state in matched
        ]
    if entry.target.parquet is None:
        await _complete_target(world, pool, entry, record)
    record.planned = False


async def _complete_target(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState
) -> None:
    """Store the identity and the next sequence of the target, which did not exist when planned."""
    info = await require_stream_info(
        pool.api(world.workspace.domains[entry.target.domain]), entry.target.stream
    )
    require_valid_target(str(entry.target), info["config"])
    for origin_state in record.origins:
        if not origin_state.target_created:
            origin_state.target_created, origin_state.target_next = (
                info["created"],
                int(info["state"]["last_seq"]) + 1,
            )
