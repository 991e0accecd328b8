"""Select the strategy of an entry: read the facts from the servers, and choose."""

from __future__ import annotations

from datetime import UTC, datetime

from jsplan.backfill.tasks.staging_sources import await_stream_info
from jsplan.config.model import Backfill, BackfillSide
from jsplan.context import Context
from jsplan.errors import RefusedError
from jsplan.jetstream import Pool
from jsplan.planning.backfill.strategy import (
    StrategyChoice,
    StrategyFacts,
    StreamTraits,
    choose_strategy,
    explain_obstacle,
    has_strategy_choice,
)
from jsplan.topology.routes import is_import


async def select_strategy(world: Context, pool: Pool, entry: Backfill) -> StrategyChoice:
    """Select the strategy of an entry whose target exists.

    Raises RefusedError for a strategy that is not possible, and ApiError.
    """
    if not has_strategy_choice(entry):
        return choose_strategy(StrategyFacts(entry, (), StreamTraits(), datetime.now(UTC)))
    target = await _fetch_traits(world, pool, entry.target)
    origins = tuple([await _fetch_traits(world, pool, side) for side in entry.origins])
    choice = choose_strategy(StrategyFacts(entry, origins, target, datetime.now(UTC)))
    require_possible(entry, choice)
    return choice


def require_possible(entry: Backfill, choice: StrategyChoice) -> None:
    """Raise RefusedError if the strategy of an entry is not possible."""
    if choice.obstacle:
        text, hint = explain_obstacle(entry, choice)
        raise RefusedError(text, hint=hint)


async def _fetch_traits(world: Context, pool: Pool, side: BackfillSide) -> StreamTraits:
    domain = world.workspace.domains[side.domain]
    api = pool.api(domain)
    info = await await_stream_info(api, side.stream)
    level = int(((await api.request("INFO")).get("api") or {}).get("level") or 0)
    return StreamTraits(info["config"], info["state"], level, imported=is_import(domain))
