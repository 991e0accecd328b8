"""The copy by Spark of N origins in M partitions, through staging streams.

Messages are staged, sealed, promoted and compared. The target is filled only from sealed staging
streams, those of earlier attempts first, so a resumed run reads only the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from jsplan.backfill.endpoints import require_same_stream
from jsplan.backfill.origin_reader import CopyOrigin
from jsplan.backfill.pending import PendingScan, scan_pending
from jsplan.backfill.pending_ranges import PendingRanges, split_by_budget
from jsplan.backfill.ranges import require_valid_target
from jsplan.backfill.retry import gather_limited, retry_while_progressing, watch_progress
from jsplan.backfill.run_context import RunContext
from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges
from jsplan.backfill.seq_ranges import (
    MAX_NAMED_MESSAGES,
    count_sequences,
    first_sequences,
    intersect,
    subtract,
)
from jsplan.backfill.snapshot_copy import is_made_from_snapshot
from jsplan.backfill.staging import Staging
from jsplan.backfill.tasks.origin_task import OriginTask
from jsplan.backfill.tasks.partition_writer import PartitionResult, build_duplicate_error
from jsplan.backfill.tasks.partitioning import (
    Partition,
    PartitionPlan,
    TransformSpec,
    assign_partitions,
)
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.backfill.tasks.target_scan import (
    StagedMessages,
    find_capacity_problem,
    find_duplicate,
    lacks_messages,
)
from jsplan.documents.backfill import OriginResult
from jsplan.errors import ApiError, ConnectError, JsplanError
from jsplan.identity import KnownObject
from jsplan.planning.backfill.model import MAX_LISTED_RANGES, DeadlinePassedError, merge_ranges

#: More partitions are not faster: a target stores messages with one core.
MAX_PARTITIONS: Final = 8


@dataclass(slots=True)
class Copier:
    """One copy. `results` is the current progress of each origin.

    `found_existing`: the target had messages of an origin before the copy.

    Only staging streams with this `fingerprint` are resumed.
    """

    context: RunContext
    origins: Sequence[CopyOrigin]
    transforms: TransformSpec
    fingerprint: str
    results: list[OriginResult] = field(init=False)
    staging: Staging = field(init=False)
    #: Each stream as it was last seen, by its address and its pinned `created`.
    _known: dict[tuple[str, str], KnownObject] = field(init=False, default_factory=dict)
    _copied: int = 0
    found_existing: bool = False

    def __post_init__(self) -> None:
        first, states = self.origins[0], [origin.state for origin in self.origins]
        self.results = [
            OriginResult(state.origin, state.target, state.first, state.last) for state in states
        ]
        self.staging = Staging(
            self.context,
            first.endpoints.target,
            first.endpoints.target_endpoint,
            first.state.target,
            first.state.target_address.stream,
            [state.origin for state in states],
            self.fingerprint,
        )

    # --- the sequence -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy the pending messages and verify them.

        Raises RefusedError, JsplanError and ApiError. It can be run again then.
        """
        if await is_made_from_snapshot(self.context, self.origins[0], self.results[0]):
            return

        async def attempt() -> None:
            await self._require_same_streams()
            await self._recover()
            await self._copy_pending()

        try:
            await retry_while_progressing(
                attempt, lambda: self._copied, self.context.observer, self._title
            )
        except DeadlinePassedError:
            await self._recover()
            raise
        for origin, result in zip(self.origins, self.results, strict=True):
            if (recorded := origin.recorded_gaps) is not None:
                result.gaps, result.gap_messages = recorded
            elif origin.state.status == "done":  # messages deleted since were copied
                result.gaps, result.gap_messages = origin.state.gaps, origin.state.gap_messages

    async def _copy_pending(self) -> None:
        """Copy the pending ranges once. Raises ApiError and ConnectError for transient errors."""
        self.context.require_open()
        for result in self.results:
            result.attempts += 1
        infos = await gather_limited(self.origins, lambda origin: origin.reader.fetch_info())
        all_pending = await self._scan_pending()
        if not self._copied:
            self.found_existing = any(pending.found_existing for pending in all_pending)
        if not any(pending.spans for pending in all_pending):
            return
        states = [info["state"] for info in infos]
        await self._require_estimated_capacity(all_pending, states)
        results: list[PartitionResult] = []
        for portion in split_by_budget(all_pending, self._compute_sequence_budget(states)):
            self.context.require_open()
            results += await self._copy_portion(portion)
        await self._report_gaps(all_pending, results)

    async def _copy_portion(self, all_pending: Sequence[PendingRanges]) -> list[PartitionResult]:
        """Stage, seal, promote and verify these ranges. Return the results of the partitions."""
        count = await self._count_partitions(all_pending)
        created = await self.staging.create(count)
        try:
            results, sealed, deletes = await self._stage(created, all_pending)
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):  # a retry cannot fix it
                await self.staging.drop(*created)
            raise
        hashes = {result.partition: result.hashes for result in results}
        equal = await self.staging.promote(
            sealed, [hashes.get(number, []) for number in range(count)], may_lack=deletes
        )
        self._add_results(results, count, equal=equal)
        await self.staging.drop(*sealed)
        return results

    async def _stage(
        self, created: Sequence[StagingStream], all_pending: Sequence[PendingRanges]
    ) -> tuple[list[PartitionResult], list[StagingStream], bool]:
        """Write the partitions, seal them, and check that both sides are still the same streams.

        Return their results, the sealed staging streams, and True if the target will delete
        messages of its own. Raises RefusedError for duplicates, for a target without capacity, and
        if another stream takes the subjects of a staging stream.
        """
        await self.staging.require_exclusive(created[0])
        plan = await self._build_plan(created, all_pending)
        results = await self._run_plan(plan, created, all_pending)
        _require_distinct(plan, results)
        sealed = await self._seal(created, results)
        await self._require_same_streams()
        messages = sum(staging.messages for staging in sealed)
        size = sum(staging.bytes for staging in sealed)
        return results, sealed, await self._require_capacity(messages, size)

    # --- earlier attempts -------------------------------------------------------------------------

    async def _recover(self) -> None:
        """Promote what earlier attempts staged, before anything new is staged."""
        for staging, content in await self.staging.recover(self._is_prefix):
            self._count_recovered(staging, content)

    async def _is_prefix(self, staging: StagingStream, content: StagedMessages) -> bool:
        """Check that a staging stream lacks no message of the origin before its last one."""
        last_proven, tail = content.find_tail(self.origins[0].name)
        if not len(tail):
            return True
        pending = (await self._scan_pending())[0].restrict(last_proven + 1, int(tail.max()))
        info = await self.staging.fetch_target_info()
        task = replace(self._build_task(self.origins[0], pending, info["config"]), deadline=None)
        endpoint = self.origins[0].endpoints.target_endpoint
        return not await asyncio.to_thread(lacks_messages, task, endpoint, staging.name, tail)

    def _count_recovered(self, staging: StagingStream, content: StagedMessages) -> None:
        self._copied += staging.messages
        for origin, result in zip(self.origins, self.results, strict=True):
            count = len(content.seqs.get(origin.name, ()))
            result.copied += count
            result.bytes += staging.bytes * count // staging.messages
            if count:
                result.verified, result.path = True, self._describe_path(1)

    # --- planning ---------------------------------------------------------------------------------

    async def _require_same_streams(self) -> None:
        """Raise JsplanError if a stream was recreated, or the target cannot be filled."""
        target = await self.staging.fetch_target_info()
        require_valid_target(self.staging.address, target["config"])
        infos = await gather_limited(self.origins, lambda origin: origin.reader.fetch_info())
        for origin, info in zip(self.origins, infos, strict=True):
            state = origin.state
            self._require_same_stream(state.origin, state.created, info)
            self._require_same_stream(state.target, state.target_created, target)

    def _require_same_stream(self, address: str, created: str, info: dict[str, Any]) -> None:
        key = address, created
        known = self._known.get(key, KnownObject(created, ""))
        self._known[key] = require_same_stream(address, known, info)

    async def _scan_pending(self) -> list[PendingRanges]:
        scans = [PendingScan(origin, self.context.topology) for origin in self.origins]
        return await scan_pending(scans, is_reordered=self.transforms.order != "stream")

    def _compute_sequence_budget(self, states: Sequence[dict[str, Any]]) -> int | None:
        """Limit the sequences of one portion, which a shuffle loses at the deadline."""
        size = self.context.portion_bytes
        if size is None or not (self.transforms.needs_rows or self.transforms.order == "subject"):
            return None
        messages, bytes_ = (
            sum(int(state[name]) for state in states) for name in ("messages", "bytes")
        )
        return max(1, size * messages // max(1, bytes_))

    async def _require_estimated_capacity(
        self, all_pending: Sequence[PendingRanges], states: Sequence[dict[str, Any]]
    ) -> None:
        """Raise RefusedError before staging if the estimated size exceeds the capacity.

        Messages are counted only if all sequences together exceed it. With SQL or a function there
        is no estimate.
        """
        if self.transforms.needs_rows:
            return
        sizes = [int(state["bytes"]) // max(1, int(state["messages"])) for state in states]
        counts = [
            min(pending.messages, int(state["messages"]))
            for pending, state in zip(all_pending, states, strict=True)
        ]
        target = await self.staging.fetch_target_info()
        size = sum(map(mul, counts, sizes))
        if find_capacity_problem(self.staging.address, target, sum(counts), size):
            exact = await gather_limited(
                self.origins, lambda origin: origin.reader.count_messages()
            )
            counts = [min(most, count) for most, count in zip(counts, exact, strict=True)]
            await self._require_capacity(sum(counts), sum(map(mul, counts, sizes)))

    async def _require_capacity(self, messages: int, size: int) -> bool:
        target = await self.staging.fetch_target_info()
        return self.context.require_capacity(self.staging.address, target, messages, size)

    async def _count_partitions(self, all_pending: Sequence[PendingRanges]) -> int:
        nonempty = sum(bool(pending.spans) for pending in all_pending)
        if nonempty == 1 and self.transforms.order == "stream":
            return 1
        most = min(
            MAX_PARTITIONS,
            await self.context.runner.count_slots(),
            max(1, sum(pending.messages for pending in all_pending)),
        )
        return min(most, nonempty) if self.transforms.order == "stream" else most

    async def _build_plan(
        self, created: Sequence[StagingStream], all_pending: Sequence[PendingRanges]
    ) -> PartitionPlan:
        """Build the tasks of an attempt, with a staging stream for each partition."""
        config = (await self.staging.fetch_target_info())["config"]
        tasks = tuple(
            self._build_task(origin, pending, config)
            for origin, pending in zip(self.origins, all_pending, strict=True)
        )
        partitions = tuple(
            Partition(self.staging.endpoint, staging.name, staging.ingest_prefix)
            for staging in created
        )
        sizes = [pending.messages for pending in all_pending]
        assigned = assign_partitions(sizes, len(created))  # used by `order: stream`
        return PartitionPlan(partitions, tasks, self.transforms, assigned, self.context.entry.rate)

    def _build_task(
        self, origin: CopyOrigin, pending: PendingRanges, target: dict[str, Any]
    ) -> OriginTask:
        return replace(
            origin.build_task(pending.spans),
            existing=pending.existing,
            coverage=pending.coverage,
            oversize=self.context.entry.oversize,
            max_msg_size=int(target.get("max_msg_size", -1)),
            deadline=self.context.deadline,
            known=self._known[origin.state.origin, origin.state.created],
        )

    # --- copying ----------------------------------------------------------------------------------

    async def _run_plan(
        self,
        plan: PartitionPlan,
        created: Sequence[StagingStream],
        all_pending: Sequence[PendingRanges],
    ) -> list[PartitionResult]:
        """Run the plan with Spark, and report progress."""
        runner, observer = self.context.runner, self.context.observer
        await runner.start()
        shown = f", in {len(created)} partitions" if len(created) > 1 else ""
        observer.phase(f"Copying {self._title}{shown}")
        return await watch_progress(
            runner.run_partitions(plan, self._title),
            observer,
            (self._title, f"{self._title}: copying"),
            lambda: self.staging.count_messages(created),
            sum(pending.messages for pending in all_pending),
        )

    async def _seal(
        self, created: Sequence[StagingStream], results: Sequence[PartitionResult]
    ) -> list[StagingStream]:
        """Seal the staging streams. Raises ApiError if one lacks messages of its partition."""
        written = {result.partition: result.messages for result in results}
        sealed = [await self.staging.seal(staging) for staging in created]
        for number, staging in enumerate(sealed):
            if staging.messages != written.get(number, 0):
                raise ApiError(
                    f"staging stream {staging.name} has {staging.messages:,} messages, but "
                    f"{written.get(number, 0):,} were written by partition {number} of "
                    f"{len(created)}",
                    hint="Another client changed it. Run the backfill again.",
                )
        return sealed

    # --- results ----------------------------------------------------------------------------------

    def _add_results(
        self, results: Sequence[PartitionResult], partitions: int, *, equal: bool
    ) -> None:
        for partition in results:
            self._copied += partition.messages
            for number, part in partition.origins.items():
                self.results[number].copied += part.messages
                self.results[number].bytes += part.size
        for result in self.results:
            if result.copied:
                result.verified, result.path = equal, self._describe_path(partitions)

    def _describe_path(self, partitions: int) -> str:
        path = "spark, via a staging stream"
        if partitions > 1:
            path = f"spark, in {partitions} partitions, via staging streams"
        archive = self.origins[0].state.archive
        return f"{path}, from {archive}" if archive else path

    async def _report_gaps(
        self, all_pending: Sequence[PendingRanges], results: Sequence[PartitionResult]
    ) -> None:
        """Report skipped messages, and as gaps those deleted at an origin before they were copied.

        That includes messages that SQL or a function dropped and that were deleted since.
        """
        for number, (origin, pending) in enumerate(zip(self.origins, all_pending, strict=True)):
            result = self.results[number]
            skipped = merge_ranges(span for one in results for span in one.skipped.get(number, ()))
            result.skipped = first_sequences(skipped, MAX_NAMED_MESSAGES)
            result.skipped_count = count_sequences(skipped)
            if origin.state.status == "done":
                continue
            gaps = subtract(pending.uncopied, skipped)
            gaps = subtract(gaps, group_into_ranges(_collect_written(number, results)))
            if gaps and not self._copies_everything(origin, pending):
                gaps = intersect(gaps, await origin.reader.find_gone())
            result.gaps = [list(gap) for gap in gaps[:MAX_LISTED_RANGES]]
            result.gap_messages = count_sequences(gaps)

    def _copies_everything(self, origin: CopyOrigin, pending: PendingRanges) -> bool:
        """Check whether a sequence that was not copied can only be deleted at the origin."""
        return (
            pending.is_exact
            and not pending.coverage
            and not origin.state.filters
            and not self.transforms.needs_rows
        )

    @property
    def _title(self) -> str:
        first = self.origins[0].state
        origins = first.origin if len(self.origins) == 1 else f"{len(self.origins)} origins"
        return f"{origins} to {first.target}"


def _require_distinct(plan: PartitionPlan, results: Sequence[PartitionResult]) -> None:
    """Raise RefusedError if a function made two messages of one, in different partitions."""
    if plan.transforms.transform is None:
        return
    partitions = [
        {number: part.seqs for number, part in result.origins.items()} for result in results
    ]
    if (found := find_duplicate(partitions)) is not None:
        raise build_duplicate_error(plan, *found)


def _collect_written(number: int, results: Sequence[PartitionResult]) -> SeqArray:
    found = [result.origins[number].seqs for result in results if number in result.origins]
    return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)
