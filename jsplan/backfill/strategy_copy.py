"""The strategy of the copy of one origin, which a resumed run keeps."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from jsplan.backfill.native_copy import NativeCopy
from jsplan.backfill.origin_copy import OriginCopy
from jsplan.backfill.pending import PendingScan
from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.retry import retry_transient
from jsplan.backfill.seq_ranges import MAX_LISTED_RANGES, OriginState, count_sequences, intersect
from jsplan.backfill.snapshot_copy import SNAPSHOT_PATH, require_same_messages
from jsplan.backfill.staging import WRITE_SECONDS
from jsplan.backfill.strategy import (
    StrategyChoice,
    StrategyFacts,
    StreamTraits,
    build_strategy_facts,
    choose_strategy,
    explain_obstacle,
    has_strategy_choice,
)
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.tasks.temporary_source import detach_source, read_owner
from jsplan.config.model import Backfill, BackfillSide
from jsplan.context import Context
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError, RefusedError
from jsplan.jetstream import Pool
from jsplan.topology import Topology
from jsplan.topology.routes import is_import


async def select_strategy(world: Context, pool: Pool, entry: Backfill) -> StrategyChoice:
    """Select the strategy of an entry whose target exists.

    Raises RefusedError for a strategy that is not possible, and ApiError.
    """
    if not has_strategy_choice(entry):
        return choose_strategy(StrategyFacts(entry, (), StreamTraits(), datetime.now(UTC)))
    target = await _fetch_traits(world, pool, entry.target)
    origins = tuple([await _fetch_traits(world, pool, side) for side in entry.origins])
    choice = choose_strategy(
        build_strategy_facts(world.topology, entry, origins, target, datetime.now(UTC))
    )
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
    info = await retry_transient(api, partial(require_stream_info, api, side.stream))
    level = int(((await api.request("INFO")).get("api") or {}).get("level") or 0)
    return StreamTraits(info["config"], info["state"], level, imported=is_import(domain))


class StrategyCopy(OriginCopy):
    """The copy of one origin by the strategy in its record; Spark copies the rest."""

    async def run(self) -> OriginResult:
        """Copy as `OriginCopy.run`."""
        native = NativeCopy(self.context, self.origin_state, self.endpoints)
        await self._remove_orphaned_source(native)
        if self.origin_state.status == "done" or self.origin_state.strategy == "spark":
            return await super().run()
        if self.origin_state.strategy == "snapshot":
            return self.result if await self._is_made_from_snapshot() else await super().run()
        if await native.run():
            self.result = await native.finish()
            return self.result
        result = await super().run()
        result.copied, result.bytes = (
            result.copied + native.result.copied,
            result.bytes + native.result.bytes,
        )
        return result

    async def _remove_orphaned_source(self, native: NativeCopy) -> None:
        """Detach a source of an earlier text of the entry, or of a deleted origin."""
        origin_state, api = self.origin_state, self.endpoints.target
        owner = read_owner((await self._fetch_target_info())["config"])
        wanted = origin_state.strategy == "native" and origin_state.status != "done"
        if (
            owner is None
            or not owner.startswith(f"{self.context.entry_id} {origin_state.origin} ")
            or (wanted and owner == native.owner)
        ):
            return

        async def detach() -> None:
            self.context.may_write(WRITE_SECONDS)
            await detach_source(
                api, (await require_stream_info(api, origin_state.target_address.stream))["config"]
            )

        await retry_transient(api, detach)

    async def _is_made_from_snapshot(self) -> bool:
        """Verify a restored target of an interrupted apply, which did not record it."""
        self.origin_state.target_created = (
            self.origin_state.target_created or (await self._fetch_target_info())["created"]
        )
        started, result = time.monotonic(), self.result
        try:
            await require_same_messages(self.origin_state, self.endpoints)
        except JsplanError as error:
            self.context.observer.warn(f"{error}. Spark copies the pending messages")
            return False
        result.gaps, result.gap_messages = await find_snapshot_gaps(
            self.origin_state, self.endpoints, self.context.topology
        )
        result.verified, result.attempts, result.path = True, 1, SNAPSHOT_PATH
        result.seconds = time.monotonic() - started
        return True


async def find_snapshot_gaps(
    origin_state: OriginState, endpoints: Endpoints, topology: Topology
) -> tuple[list[list[int]], int]:
    """Find the gaps of the range at the origin: ranges and their count. Raises ApiError."""
    gone = (
        intersect(
            [origin_state.seq_range],
            await PendingScan(origin_state, endpoints, topology).find_gone(),
        )
        if origin_state.first <= origin_state.last
        else []
    )
    return [list(span) for span in gone[:MAX_LISTED_RANGES]], count_sequences(gone)
