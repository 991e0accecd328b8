"""Which origins of a fleet can be reached, and the range of each of them: one that is away is left for whoever comes next."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jsplan.backfill.pinning import pin_ranges
from jsplan.backfill.retry import gather_limited
from jsplan.errors import ApiError, ConnectError, JsplanError, NotPermittedError, ServerRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.backfill.model import BackfillState
    from jsplan.config.model import Backfill
    from jsplan.context import Context
    from jsplan.jetstream import Pool


async def find_offline_domains(world: Context, pool: Pool, entry: Backfill) -> dict[str, str]:
    """Domains of origins that do not answer, with why. Raises the first reason where none does."""

    async def trouble(key: str) -> JsplanError | None:
        try:
            await pool.api(world.workspace.domains[key]).request("INFO")
        except (NotPermittedError, ServerRefusedError):
            raise
        except (ApiError, ConnectError) as error:
            return error
        return None

    keys = list(dict.fromkeys(side.domain for side in entry.origins))
    found = await gather_limited(keys, trouble)
    away = {key: error for key, error in zip(keys, found, strict=True) if error is not None}
    if len(away) == len(keys):
        raise next(iter(away.values()))
    return {key: error.full_text for key, error in away.items()}


async def pin_reachable_origins(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState, offline: Collection[str]
) -> bool:
    """Add the range of every origin that can be reached and that the record does not have; whether there was any. Raises as `pin_ranges`."""
    known = {leg.origin for leg in record.origins}
    new = [side for side in entry.origins if str(side) not in known and side.domain not in offline]
    found = await gather_limited(
        new, lambda side: pin_ranges(world, pool, replace(entry, origins=(side,)))
    )
    if new:
        record.origins += [leg for one in found for leg in one.origins]
        order = {str(side): number for number, side in enumerate(entry.origins)}
        record.origins.sort(key=lambda leg: order[leg.origin])
        record.done_at = ""
    return bool(new)
