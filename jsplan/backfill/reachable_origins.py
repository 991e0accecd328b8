"""The origins of a fleet that can be reached, and their ranges; offline ones are deferred."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.backfill.pinning import pin_origin
from jsplan.backfill.retry import gather_limited
from jsplan.errors import ApiError, ConnectError, JsplanError, NotPermittedError, ServerRefusedError

if TYPE_CHECKING:
    from collections.abc import Collection

    from jsplan.config.model import Backfill
    from jsplan.context import Context
    from jsplan.jetstream import Pool
    from jsplan.planning.backfill.model import BackfillState


async def find_offline_domains(world: Context, pool: Pool, entry: Backfill) -> dict[str, str]:
    """Find offline domains of origins, with the reason. Raises if all are offline."""

    async def check(key: str) -> JsplanError | None:
        try:
            await pool.api(world.workspace.domains[key]).request("INFO")
        except (NotPermittedError, ServerRefusedError):
            raise
        except (ApiError, ConnectError) as error:
            return error
        return None

    keys = list(dict.fromkeys(side.domain for side in entry.origins))
    errors = await gather_limited(keys, check)
    offline = {key: error for key, error in zip(keys, errors, strict=True) if error is not None}
    if len(offline) == len(keys):
        raise next(iter(offline.values()))
    return {key: error.full_text for key, error in offline.items()}


async def pin_reachable_origins(
    world: Context, pool: Pool, entry: Backfill, record: BackfillState, offline: Collection[str]
) -> bool:
    """Add the ranges of reachable origins that the record lacks. Return True if there were any.

    Raises the errors of `pin_origin`.
    """
    known = {origin.origin for origin in record.origins}
    new = [side for side in entry.origins if str(side) not in known and side.domain not in offline]
    pinned = await gather_limited(new, lambda side: pin_origin(world, pool, entry, side))
    if new:
        record.origins += [origin for origins in pinned for origin in origins]
        order = {str(side): number for number, side in enumerate(entry.origins)}
        record.origins.sort(key=lambda origin: order[origin.origin])
        record.done_at = ""
    return bool(new)
