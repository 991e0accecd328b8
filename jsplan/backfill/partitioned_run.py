"""A backfill in partitions: for another order, for SQL, a function or many origins.

One Spark job reads all reachable origins. Offline origins are deferred to the next run.
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
    """Check whether an entry is copied in partitions: with transforms or many origins."""
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
    """Check whether an entry reads an archive."""
    return any(side.parquet is not None for side in entry.origins)


async def load_parquet_origins(
    world: Context, entry: Backfill, origins: Iterable[OriginState]
) -> list[ParquetOrigin]:
    """Load the archives of an entry; an empty list if it reads streams.

    Raises ArchiveError, and RefusedError if two archives are of one stream.
    """
    if not reads_archive(entry):
        return []
    loaded = [await load_parquet_origin(world, origin) for origin in origins]
    names = [f"{archive.origin.domain}/{archive.origin.stream}" for archive in loaded]
    if duplicate := next(
        (name for number, name in enumerate(names) if name in names[:number]), None
    ):
        raise RefusedError(
            f"backfill {entry.name} reads more than one archive of {duplicate}, "
            "and a sequence means another message in each",
            hint="Make an entry of each archive. Archives of a recreated stream can only be copied "
            "without order, where, transform and subject_transform.",
        )
    return loaded


@dataclass(slots=True)
class PartitionedRun:
    """One run of all reachable origins. `save_state` writes a record into the state."""

    run: BackfillRun
    build_context: Callable[[BackfillState], RunContext]
    save_state: Callable[[BackfillState], Awaitable[None]]

    async def execute(self) -> BackfillResult:
        """Copy the pending messages of reachable origins. Raises as `workflows.backfill.run`."""
        run, entry = self.run, self.run.entry
        transforms = build_transform_spec(run.world.workspace.root, entry)
        await run.pool.open(domain.connection for domain in run.world.workspace.domains.values())
        await run.pool.api(run.world.workspace.domains[entry.target.domain]).request("INFO")
        await run.record_target_seen()
        offline = (
            {} if reads_archive(entry) else await find_offline_domains(run.world, run.pool, entry)
        )
        record, result = await self._load_state(offline), BackfillResult(entry.name)
        result.deferred = [
            {"address": str(side), "reason": offline[side.domain]}
            for side in entry.origins
            if side.domain in offline
        ]
        origins = [
            origin for origin in record.origins if origin.origin_address.domain not in offline
        ]
        try:
            await self._copy_origins(record, origins, transforms, result)
        except WindowClosedError:
            result.closed = True
        result.exit_code = int(
            ExitCode.CHANGES if result.gap_messages and run.options.fail_on_gap else ExitCode.OK
        )
        return result

    async def _load_state(self, offline: dict[str, str]) -> BackfillState:
        """Load the state, and pin the ranges of reachable origins that it lacks."""
        run, entry = self.run, self.run.entry
        record = load_stored_state(run.world, entry)
        if record is None or run.options.reset_range:
            record = BackfillState(entry.name, hash_config(entry), [], format_timestamp())
        if reads_archive(entry):
            return await self._pin_archive(record)
        if await pin_reachable_origins(run.world, run.pool, entry, record, offline):
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
        origins: list[OriginState],
        transforms: TransformSpec,
        result: BackfillResult,
    ) -> None:
        run, started, before = self.run, time.monotonic(), self.run.runner.start_seconds
        archives = await load_parquet_origins(run.world, run.entry, origins)
        endpoints = (
            [
                endpoints_from_parquet(run.world, run.pool, origin, archive)
                for origin, archive in zip(origins, archives, strict=True)
            ]
            if archives
            else self._build_endpoints(origins)
        )
        if not endpoints:
            return
        await self._require_same_streams(origins, endpoints, archives)
        fingerprint = f"{record.entry_hash} {record.pinned_at} {transforms.fingerprint}"
        copy = PartitionedCopy(
            self.build_context(record), transforms, origins, endpoints, fingerprint, archives
        )
        try:
            await copy.run()
            for number, (origin, copied) in enumerate(zip(origins, copy.results, strict=True)):
                if archives:
                    copied.gaps, copied.gap_messages = (
                        archives[number].gaps,
                        archives[number].gap_messages,
                    )
                elif origin.status == "done":
                    copied.gaps, copied.gap_messages = origin.gaps, origin.gap_messages
                (
                    origin.status,
                    origin.gaps,
                    origin.gap_messages,
                    origin.skipped,
                ) = (
                    "done",
                    copied.gaps,
                    copied.gap_messages,
                    copied.skipped or origin.skipped,
                )
        finally:
            seconds = time.monotonic() - started - (run.runner.start_seconds - before)
            for origin, copied in zip(origins, copy.results, strict=True):
                copied.seconds = seconds
                origin.copied += copied.copied
                origin.seconds += (
                    seconds * copied.copied / max(1, sum(result.copied for result in copy.results))
                )
            if len(record.origins) == len(run.entry.origins) and all(
                origin.status == "done" for origin in record.origins
            ):
                record.done_at = format_timestamp()
            result.origins = copy.results
            await self.save_state(record)

    def _build_endpoints(self, origins: list[OriginState]) -> list[Endpoints]:
        return [Endpoints.of_origin(self.run.world, self.run.pool, origin) for origin in origins]

    async def _require_same_streams(
        self,
        origins: list[OriginState],
        endpoints: list[Endpoints],
        archives: list[ParquetOrigin],
    ) -> None:
        """Raise JsplanError if a stream was recreated, or the target cannot be filled."""
        target = await require_stream_info(endpoints[0].target, self.run.entry.target.stream)
        require_valid_target(str(self.run.entry.target), target["config"])
        pairs = list(zip(origins, endpoints, strict=True))
        infos: list[dict[str, Any]] = [archive.stream_info for archive in archives]
        infos = infos or await gather_limited(
            pairs, lambda pair: require_stream_info(pair[1].origin, pair[0].origin_address.stream)
        )
        for origin, info in zip(origins, infos, strict=True):
            require_same_streams(origin, info, target)


def load_transform_spec(world: Context, entry: Backfill) -> TransformSpec:
    """Build the transforms of an entry of a workspace. Raises UsageError."""
    return build_transform_spec(world.workspace.root, entry)
