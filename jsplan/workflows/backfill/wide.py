"""A backfill in lanes: of one origin in an order of its own, of what SQL or a function makes of the messages, or of a whole fleet.

One job reads all origins that can be reached; origins that are away are left for the next run. What it writes, and how whoever comes
after takes over, is in `widely`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from jsplan.backfill.job.lanes import Function
from jsplan.backfill.job.mapping import Mapping
from jsplan.backfill.job.promoting import target_info
from jsplan.backfill.records import Leg, Record, text_of
from jsplan.config.model import Backfill, BackfillSide
from jsplan.documents.backfill import BackfillResult
from jsplan.errors import ApiError, ConnectError, ExitCode, JsplanError, NotPermittedError, ServerRefusedError, UsageError
from jsplan.units import stamp
from jsplan.workflows.backfill.freeze import Ends, freeze, record_of, refuse_target, require_same
from jsplan.workflows.backfill.waiting import at_once
from jsplan.workflows.backfill.widely import Shape, Wide

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.workflows.backfill.leg import Work
    from jsplan.workflows.backfill.runs import Run
    from jsplan.workflows.world import World


def is_shaped(entry: Backfill) -> bool:
    """Whether messages do not come as they are, one after the other."""
    return entry.order != "stream" or any((entry.where, entry.transform, entry.subject_transform))


def is_wide(entry: Backfill) -> bool:
    """Whether an entry is copied in lanes: the messages are shaped, or there are several streams."""
    if any(side.parquet is not None for side in (*entry.origins, entry.target)):
        return False
    if is_shaped(entry):
        return True
    return _distinct(entry.origins) and len(entry.origins) > 1 and entry.keep == "origin" and entry.strategy in ("auto", "spark")


def _distinct(sides: Iterable[BackfillSide]) -> bool:
    names = [str(side) for side in sides]
    return len(set(names)) == len(names)


def check_shape(root: Path, entry: Backfill) -> Shape:
    """What becomes of the messages of an entry. Raises UsageError for what cannot be, before any server is asked."""
    if is_shaped(entry):
        _require_possible(entry)
    mapping = Mapping(*entry.subject_transform) if entry.subject_transform is not None else None
    try:
        if mapping is not None:
            mapping.made()
    except ValueError as error:
        raise UsageError(f"backfill {entry.name}: subject_transform: {error}") from None
    return Shape(entry.order, entry.where, _function(root, entry), mapping)


def _require_possible(entry: Backfill) -> None:
    if any(side.parquet is not None for side in (*entry.origins, entry.target)):
        raise UsageError(
            f"backfill {entry.name}: an archive takes and gives messages as they are, in their order",
            hint="Leave out order, where, transform and subject_transform; apply them between two streams.",
        )
    if entry.keep == "server" or entry.strategy not in ("auto", "spark"):
        raise UsageError(
            f"backfill {entry.name}: servers copy messages as they are; only Spark applies order, where, transform and subject_transform",
            hint="Leave out `keep: server` and `strategy`.",
        )
    if not _distinct(entry.origins):
        raise UsageError(
            f"backfill {entry.name} names a stream twice, and its ranges might overlap", hint="Make an entry of each range of it."
        )


def _function(root: Path, entry: Backfill) -> Function | None:
    if entry.transform is None:
        return None
    path, colon, name = entry.transform.rpartition(":")
    if not (colon and path and name.isidentifier()):
        raise UsageError(f"backfill {entry.name}: transform {entry.transform!r} is not FILE.py:FUNCTION")
    try:
        text = (root / path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise UsageError(f"backfill {entry.name}: {root / path} cannot be read: {reason}") from None
    return Function(path, name, text)


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
        away = await self._away()
        record, result = await self._record(away), BackfillResult(entry.name)
        result.deferred = [{"address": str(side), "reason": away[side.domain]} for side in entry.origins if side.domain in away]
        legs = [leg for leg in record.legs if leg.origin_address.domain not in away]
        await self._carried_out(record, legs, shape, result)
        result.exit_code = int(ExitCode.CHANGES if result.gap_messages and run.options.fail_on_gap else ExitCode.OK)
        return result

    async def _away(self) -> dict[str, str]:
        """Domains of origins that do not answer, with why. Raises the first reason where none does."""
        keys = list(dict.fromkeys(side.domain for side in self.run.entry.origins))
        found = await at_once(keys, self._trouble)
        away = {key: error for key, error in zip(keys, found, strict=True) if error is not None}
        if len(away) == len(keys):
            raise next(iter(away.values()))
        return {key: error.in_full for key, error in away.items()}

    async def _trouble(self, key: str) -> JsplanError | None:
        try:
            await self.run.pool.api(self.run.world.workspace.domains[key]).request("INFO")
        except (NotPermittedError, ServerRefusedError):
            raise
        except (ApiError, ConnectError) as error:
            return error
        return None

    async def _record(self, away: dict[str, str]) -> Record:
        """The record, with the range of every origin that can be reached: those that were away are frozen when they are back."""
        run, entry = self.run, self.run.entry
        record = record_of(run.world, entry)
        if record is None or run.options.fresh:
            record = Record(entry.name, text_of(entry), [], stamp())
        known = {leg.origin for leg in record.legs}
        new = [side for side in entry.origins if str(side) not in known and side.domain not in away]
        found = await at_once(new, lambda side: freeze(run.world, run.pool, replace(entry, origins=(side,))))
        if new:
            record.legs += [leg for one in found for leg in one.legs]
            order = {str(side): number for number, side in enumerate(entry.origins)}
            record.legs.sort(key=lambda leg: order[leg.origin])
            record.done_at = ""
            await self.keep(record)
        return record

    async def _carried_out(self, record: Record, legs: list[Leg], shape: Shape, result: BackfillResult) -> None:
        run, started, before = self.run, time.monotonic(), self.run.engine.start_took
        ends = [Ends.of_leg(run.world, run.pool, leg) for leg in legs]
        await self._require_same(legs, ends)
        text = f"{record.text} {record.frozen_at} {_fingerprint(shape)}"
        wide = Wide(self.work_of(record), shape, legs, ends, text)
        try:
            await wide.run()
            for leg, found in zip(legs, wide.results, strict=True):
                if leg.status == "done":
                    found.gaps, found.gap_messages = leg.gaps, leg.gap_messages
                leg.status, leg.gaps, leg.gap_messages, leg.skipped = "done", found.gaps, found.gap_messages, found.skipped or leg.skipped
        finally:
            seconds = time.monotonic() - started - (run.engine.start_took - before)
            for leg, found in zip(legs, wide.results, strict=True):
                found.seconds = seconds
                leg.copied += found.copied
                leg.seconds += seconds * found.copied / max(1, sum(result.copied for result in wide.results))
            if len(record.legs) == len(run.entry.origins) and all(each.status == "done" for each in record.legs):
                record.done_at = stamp()
            await self.keep(record)
        result.legs = wide.results

    async def _require_same(self, legs: list[Leg], ends: list[Ends]) -> None:
        """Raise JsplanError where an end is another stream than the one whose range was frozen, or the target takes no copies."""
        target = await target_info(ends[0].target, self.run.entry.target.stream)
        refuse_target(str(self.run.entry.target), target["config"])
        pairs = list(zip(legs, ends, strict=True))
        infos: list[dict[str, Any]] = await at_once(pairs, lambda pair: target_info(pair[1].origin, pair[0].origin_address.stream))
        for leg, origin in zip(legs, infos, strict=True):
            require_same(leg, origin, target)


def _fingerprint(shape: Shape) -> str:
    """Tells what was staged by a function from what its file makes of it now."""
    return hashlib.sha256(shape.transform.text.encode()).hexdigest()[:16] if shape.transform is not None else ""


def shape_of(world: World, entry: Backfill) -> Shape:
    """What becomes of the messages of an entry of a workspace. Raises UsageError."""
    return check_shape(world.workspace.root, entry)
