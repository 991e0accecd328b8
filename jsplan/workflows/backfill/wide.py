"""A backfill in lanes: of one origin in an order of its own, of what SQL or a function makes of the messages, or of a whole fleet.

One job reads all origins that can be reached; origins that are away are left for the next run. What it writes, and how whoever comes
after takes over, is in `widely`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.records import Leg, Record, text_of
from jsplan.backfill.windows import WindowClosedError
from jsplan.config.model import Backfill
from jsplan.documents.backfill import BackfillResult
from jsplan.errors import ExitCode, RefusedError
from jsplan.units import stamp
from jsplan.workflows.backfill.archives import Held, held_by
from jsplan.workflows.backfill.freeze import Ends, freeze, record_of, refuse_target, require_same
from jsplan.workflows.backfill.jobs import ends_from
from jsplan.workflows.backfill.reaching import away_of, freeze_more
from jsplan.workflows.backfill.shapes import Shape, check_shape, distinct, is_shaped
from jsplan.workflows.backfill.waiting import at_once
from jsplan.workflows.backfill.widely import Wide

if TYPE_CHECKING:
    from jsplan.workflows.backfill.leg import Work
    from jsplan.workflows.backfill.runs import Run
    from jsplan.workflows.world import World


def is_wide(entry: Backfill) -> bool:
    """Whether an entry is copied in lanes: the messages are shaped on their way into a stream, or there are several streams."""
    if entry.target.parquet is not None:
        return False
    if is_shaped(entry):
        return True
    if out_of_archive(entry):
        return False
    return distinct(entry.origins) and len(entry.origins) > 1 and entry.mode == "tagged" and entry.strategy in ("auto", "spark")


def out_of_archive(entry: Backfill) -> bool:
    """Whether an entry reads an archive."""
    return any(side.parquet is not None for side in entry.origins)


async def held_of_legs(world: World, entry: Backfill, legs: Iterable[Leg]) -> list[Held]:
    """What the archives of an entry have of its legs; nothing where it reads streams.

    Raises ArchiveError, and RefusedError where a message could be one of two.
    """
    if not out_of_archive(entry):
        return []
    found = [await held_by(world, leg) for leg in legs]
    names = [f"{held.origin.domain}/{held.origin.stream}" for held in found]
    if again := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise RefusedError(
            f"backfill {entry.name}: there is more than one {again} in what it reads, and a sequence means another message in each",
            hint="Make an entry of each archive. A stream that was made anew and archived again comes back only without order, where, "
            "transform and subject_transform.",
        )
    return found


@dataclass(slots=True)
class WideRun:
    """One run: which origins can be reached, their ranges, then all of them together. `keep` writes the record into the state."""

    run: Run
    work_of: Callable[[Record], Work]
    keep: Callable[[Record], Awaitable[None]]

    async def all(self) -> BackfillResult:
        """Copy what is missing of every origin that can be reached. Raises what `workflows.backfill.run` raises."""
        run, entry = self.run, self.run.entry
        shape = check_shape(run.world.workspace.root, entry)
        await run.pool.open(domain.connection for domain in run.world.workspace.domains.values())
        await run.pool.api(run.world.workspace.domains[entry.target.domain]).request("INFO")
        await run.see_target()
        away = {} if out_of_archive(entry) else await away_of(run.world, run.pool, entry)
        record, result = await self._record(away), BackfillResult(entry.name)
        result.deferred = [{"address": str(side), "reason": away[side.domain]} for side in entry.origins if side.domain in away]
        legs = [leg for leg in record.origins if leg.origin_address.domain not in away]
        try:
            await self._carried_out(record, legs, shape, result)
        except WindowClosedError:
            result.closed = True
        result.exit_code = int(ExitCode.CHANGES if result.gap_messages and run.options.fail_on_gap else ExitCode.OK)
        return result

    async def _record(self, away: dict[str, str]) -> Record:
        """The record, with the range of every origin that can be reached: those that were away are pinned when they are back."""
        run, entry = self.run, self.run.entry
        record = record_of(run.world, entry)
        if record is None or run.options.reset_range:
            record = Record(entry.name, text_of(entry), [], stamp())
        if out_of_archive(entry):
            return await self._record_of_archive(record)
        if await freeze_more(run.world, run.pool, entry, record, away):
            await self.keep(record)
        return record

    async def _record_of_archive(self, record: Record) -> Record:
        if not record.origins:
            record = await freeze(self.run.world, self.run.pool, self.run.entry)
            await self.keep(record)
        return record

    async def _carried_out(self, record: Record, legs: list[Leg], shape: Shape, result: BackfillResult) -> None:
        run, started, before = self.run, time.monotonic(), self.run.engine.start_took
        held = await held_of_legs(run.world, run.entry, legs)
        ends = [ends_from(run.world, run.pool, leg, one) for leg, one in zip(legs, held, strict=True)] if held else self._ends(legs)
        if not ends:
            return
        await self._require_same(legs, ends, held)
        text = f"{record.entry_hash} {record.pinned_at} {shape.fingerprint}"
        wide = Wide(self.work_of(record), shape, legs, ends, text, held)
        try:
            await wide.run()
            for number, (leg, found) in enumerate(zip(legs, wide.results, strict=True)):
                if held:
                    found.gaps, found.gap_messages = held[number].gaps, held[number].gap_messages
                elif leg.status == "done":
                    found.gaps, found.gap_messages = leg.gaps, leg.gap_messages
                leg.status, leg.gaps, leg.gap_messages, leg.skipped = "done", found.gaps, found.gap_messages, found.skipped or leg.skipped
        finally:
            seconds = time.monotonic() - started - (run.engine.start_took - before)
            for leg, found in zip(legs, wide.results, strict=True):
                found.seconds = seconds
                leg.copied += found.copied
                leg.seconds += seconds * found.copied / max(1, sum(result.copied for result in wide.results))
            if len(record.origins) == len(run.entry.origins) and all(each.status == "done" for each in record.origins):
                record.done_at = stamp()
            result.origins = wide.results
            await self.keep(record)

    def _ends(self, legs: list[Leg]) -> list[Ends]:
        return [Ends.of_leg(self.run.world, self.run.pool, leg) for leg in legs]

    async def _require_same(self, legs: list[Leg], ends: list[Ends], held: list[Held]) -> None:
        """Raise JsplanError where an end is another stream than the one whose range was pinned, or the target takes no copies."""
        target = await target_info(ends[0].target, self.run.entry.target.stream)
        refuse_target(str(self.run.entry.target), target["config"])
        pairs = list(zip(legs, ends, strict=True))
        infos: list[dict[str, Any]] = [one.info for one in held]
        infos = infos or await at_once(pairs, lambda pair: target_info(pair[1].origin, pair[0].origin_address.stream))
        for leg, origin in zip(legs, infos, strict=True):
            require_same(leg, origin, target)


def shape_of(world: World, entry: Backfill) -> Shape:
    """What becomes of the messages of an entry of a workspace. Raises UsageError."""
    return check_shape(world.workspace.root, entry)
