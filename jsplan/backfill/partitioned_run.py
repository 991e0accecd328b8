"""A backfill in lanes: of one origin in an order of its own, of what SQL or a function makes of the messages, or of a whole fleet.

One job reads all origins that can be reached; origins that are away are left for the next run. What it writes, and how whoever comes
after takes over, is in `widely`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jsplan.backfill.copy_factory import endpoints_from_parquet
from jsplan.backfill.model import BackfillState, OriginState, hash_config
from jsplan.backfill.parquet.location import ParquetOrigin, load_parquet_origin
from jsplan.backfill.partitioned_copy import PartitionedCopy
from jsplan.backfill.pinning import (
    Endpoints,
    load_stored_state,
    pin_ranges,
    require_same_streams,
    require_valid_target,
)
from jsplan.backfill.reachable_origins import find_offline_domains, pin_reachable_origins
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.transforms import (
    TransformSpec,
    build_transform_spec,
    has_distinct_origins,
    has_transforms,
)
from jsplan.backfill.windows import WindowClosedError
from jsplan.config.model import Backfill
from jsplan.documents.backfill import BackfillResult
from jsplan.errors import ExitCode, RefusedError
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from jsplan.backfill.origin_copy import RunContext
    from jsplan.backfill.run import BackfillRun
    from jsplan.context import Context


def needs_partitions(entry: Backfill) -> bool:
    """Whether an entry is copied in lanes: the messages are shaped on their way into a stream, or there are several streams."""
    if entry.target.parquet is not None:
        return False
    if has_transforms(entry):
        return True
    if reads_archive(entry):
        return False
    return (
        has_distinct_origins(entry.origins)
        and len(entry.origins) > 1
        and entry.mode == "tagged"
        and entry.strategy in ("auto", "spark")
    )


def reads_archive(entry: Backfill) -> bool:
    """Whether an entry reads an archive."""
    return any(side.parquet is not None for side in entry.origins)


async def load_parquet_origins(
    world: Context, entry: Backfill, legs: Iterable[OriginState]
) -> list[ParquetOrigin]:
    """What the archives of an entry have of its legs; nothing where it reads streams.

    Raises ArchiveError, and RefusedError where a message could be one of two.
    """
    if not reads_archive(entry):
        return []
    found = [await load_parquet_origin(world, leg) for leg in legs]
    names = [f"{held.origin.domain}/{held.origin.stream}" for held in found]
    if again := next((name for number, name in enumerate(names) if name in names[:number]), None):
        raise RefusedError(
            f"backfill {entry.name}: there is more than one {again} in what it reads, and a sequence means another message in each",
            hint="Make an entry of each archive. A stream that was made anew and archived again comes back only without order, where, "
            "transform and subject_transform.",
        )
    return found


@dataclass(slots=True)
class PartitionedRun:
    """One run: which origins can be reached, their ranges, then all of them together. `save_state` writes the record into the state."""

    run: BackfillRun
    build_context: Callable[[BackfillState], RunContext]
    save_state: Callable[[BackfillState], Awaitable[None]]

    async def execute(self) -> BackfillResult:
        """Copy what is missing of every origin that can be reached. Raises what `workflows.backfill.run` raises."""
        run, entry = self.run, self.run.entry
        shape = build_transform_spec(run.world.workspace.root, entry)
        await run.pool.open(domain.connection for domain in run.world.workspace.domains.values())
        await run.pool.api(run.world.workspace.domains[entry.target.domain]).request("INFO")
        await run.record_target_seen()
        away = (
            {} if reads_archive(entry) else await find_offline_domains(run.world, run.pool, entry)
        )
        record, result = await self._load_state(away), BackfillResult(entry.name)
        result.deferred = [
            {"address": str(side), "reason": away[side.domain]}
            for side in entry.origins
            if side.domain in away
        ]
        legs = [leg for leg in record.origins if leg.origin_address.domain not in away]
        try:
            await self._copy_origins(record, legs, shape, result)
        except WindowClosedError:
            result.closed = True
        result.exit_code = int(
            ExitCode.CHANGES if result.gap_messages and run.options.fail_on_gap else ExitCode.OK
        )
        return result

    async def _load_state(self, away: dict[str, str]) -> BackfillState:
        """The record, with the range of every origin that can be reached: those that were away are pinned when they are back."""
        run, entry = self.run, self.run.entry
        record = load_stored_state(run.world, entry)
        if record is None or run.options.reset_range:
            record = BackfillState(entry.name, hash_config(entry), [], format_timestamp())
        if reads_archive(entry):
            return await self._pin_archive(record)
        if await pin_reachable_origins(run.world, run.pool, entry, record, away):
            await self.save_state(record)
        return record

    async def _pin_archive(self, record: BackfillState) -> BackfillState:
        if not record.origins:
            record = await pin_ranges(self.run.world, self.run.pool, self.run.entry)
            await self.save_state(record)
        return record

    async def _copy_origins(
        self,
        record: BackfillState,
        legs: list[OriginState],
        shape: TransformSpec,
        result: BackfillResult,
    ) -> None:
        run, started, before = self.run, time.monotonic(), self.run.runner.start_seconds
        held = await load_parquet_origins(run.world, run.entry, legs)
        ends = (
            [
                endpoints_from_parquet(run.world, run.pool, leg, one)
                for leg, one in zip(legs, held, strict=True)
            ]
            if held
            else self._build_endpoints(legs)
        )
        if not ends:
            return
        await self._require_same_streams(legs, ends, held)
        text = f"{record.entry_hash} {record.pinned_at} {shape.fingerprint}"
        wide = PartitionedCopy(self.build_context(record), shape, legs, ends, text, held)
        try:
            await wide.run()
            for number, (leg, found) in enumerate(zip(legs, wide.results, strict=True)):
                if held:
                    found.gaps, found.gap_messages = held[number].gaps, held[number].gap_messages
                elif leg.status == "done":
                    found.gaps, found.gap_messages = leg.gaps, leg.gap_messages
                leg.status, leg.gaps, leg.gap_messages, leg.skipped = (
                    "done",
                    found.gaps,
                    found.gap_messages,
                    found.skipped or leg.skipped,
                )
        finally:
            seconds = time.monotonic() - started - (run.runner.start_seconds - before)
            for leg, found in zip(legs, wide.results, strict=True):
                found.seconds = seconds
                leg.copied += found.copied
                leg.seconds += (
                    seconds * found.copied / max(1, sum(result.copied for result in wide.results))
                )
            if len(record.origins) == len(run.entry.origins) and all(
                each.status == "done" for each in record.origins
            ):
                record.done_at = format_timestamp()
            result.origins = wide.results
            await self.save_state(record)

    def _build_endpoints(self, legs: list[OriginState]) -> list[Endpoints]:
        return [Endpoints.of_origin(self.run.world, self.run.pool, leg) for leg in legs]

    async def _require_same_streams(
        self, legs: list[OriginState], ends: list[Endpoints], held: list[ParquetOrigin]
    ) -> None:
        """Raise JsplanError where an end is another stream than the one whose range was pinned, or the target takes no copies."""
        target = await require_stream_info(ends[0].target, self.run.entry.target.stream)
        require_valid_target(str(self.run.entry.target), target["config"])
        pairs = list(zip(legs, ends, strict=True))
        infos: list[dict[str, Any]] = [one.stream_info for one in held]
        infos = infos or await gather_limited(
            pairs, lambda pair: require_stream_info(pair[1].origin, pair[0].origin_address.stream)
        )
        for leg, origin in zip(legs, infos, strict=True):
            require_same_streams(leg, origin, target)


def load_transform_spec(world: Context, entry: Backfill) -> TransformSpec:
    """What becomes of the messages of an entry of a workspace. Raises UsageError."""
    return build_transform_spec(world.workspace.root, entry)
