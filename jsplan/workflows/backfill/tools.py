"""Which tool carries out a leg, and that it is carried on with by who takes over; what each does is in `leg`, `native` and `filling`."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial

from jsplan.backfill.choosing import Choice, Situation, Stream, can_be_chosen, choose, not_possible, situation
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.job.sourcing import detach, marked
from jsplan.backfill.ranges import LISTED, Leg, common, total
from jsplan.config.model import Backfill, BackfillSide
from jsplan.documents.backfill import LegResult
from jsplan.errors import JsplanError, RefusedError
from jsplan.jetstream import Pool
from jsplan.topology import Topology
from jsplan.topology.reach import is_import
from jsplan.workflows.backfill.bringing import WRITING
from jsplan.workflows.backfill.filling import BY_SNAPSHOT, require_same_messages
from jsplan.workflows.backfill.freeze import Ends
from jsplan.workflows.backfill.leg import LegRun
from jsplan.workflows.backfill.missing import Missing
from jsplan.workflows.backfill.native import NativeRun
from jsplan.workflows.backfill.waiting import patiently
from jsplan.workflows.world import World


async def chosen(world: World, pool: Pool, entry: Backfill) -> Choice:
    """What copies an entry whose target exists. Raises RefusedError for a strategy that is not possible, and ApiError."""
    if not can_be_chosen(entry):
        return choose(Situation(entry, (), Stream(), datetime.now(UTC)))
    target = await _stream(world, pool, entry.target)
    origins = tuple([await _stream(world, pool, side) for side in entry.origins])
    found = choose(situation(world.topology, entry, origins, target, datetime.now(UTC)))
    require_possible(entry, found)
    return found


def require_possible(entry: Backfill, choice: Choice) -> None:
    """Raise RefusedError where an entry asks for a strategy that cannot be."""
    if choice.against:
        text, hint = not_possible(entry, choice)
        raise RefusedError(text, hint=hint)


async def _stream(world: World, pool: Pool, side: BackfillSide) -> Stream:
    domain = world.workspace.domains[side.domain]
    api = pool.api(domain)
    info = await patiently(api, partial(target_info, api, side.stream))
    level = int(((await api.request("INFO")).get("api") or {}).get("level") or 0)
    return Stream(info["config"], info["state"], level, imported=is_import(domain))


class ToolRun(LegRun):
    """One leg by the tool that its record names; what that leaves is done by Spark."""

    async def run(self) -> LegResult:
        """As `LegRun.run`."""
        native = NativeRun(self.work, self.leg, self.ends)
        await self._without_strays(native)
        if self.leg.status == "done" or self.leg.strategy == "spark":
            return await super().run()
        if self.leg.strategy == "snapshot":
            return self.result if await self._is_made_from_snapshot() else await super().run()
        if await native.run():
            self.result = await native.settle()
            return self.result
        found = await super().run()
        found.copied, found.bytes = found.copied + native.result.copied, found.bytes + native.result.bytes
        return found

    async def _without_strays(self, native: NativeRun) -> None:
        """Take out a source that an attempt left which meant something else by this entry: another text, another stream at the origin."""
        leg, api = self.leg, self.ends.target
        whose = marked((await self._target_info())["config"])
        wanted = leg.strategy == "native" and leg.status != "done"
        if whose is None or not whose.startswith(f"{self.work.entry_id} {leg.origin} ") or (wanted and whose == native.whose):
            return

        async def out() -> None:
            self.work.may_write(WRITING)
            await detach(api, (await target_info(api, leg.target_address.stream))["config"])

        await patiently(api, out)

    async def _is_made_from_snapshot(self) -> bool:
        """Whoever made the target died before saying so: is it what it should be?"""
        self.leg.target_created = self.leg.target_created or (await self._target_info())["created"]
        started, result = time.monotonic(), self.result
        try:
            await require_same_messages(self.leg, self.ends)
        except JsplanError as error:
            self.work.observer.warn(f"{error}. Spark copies the pending messages")
            return False
        result.gaps, result.gap_messages = await snapshot_gaps(self.leg, self.ends, self.work.topology)
        result.verified, result.attempts, result.path = True, 1, BY_SNAPSHOT
        result.seconds = time.monotonic() - started
        return True


async def snapshot_gaps(leg: Leg, ends: Ends, topology: Topology) -> tuple[list[list[int]], int]:
    """What of the range the origin had not any more: as lists, and how many. Raises ApiError."""
    gone = common([leg.span], await Missing(leg, ends, topology).gone()) if leg.first <= leg.last else []
    return [list(span) for span in gone[:LISTED]], total(gone)
