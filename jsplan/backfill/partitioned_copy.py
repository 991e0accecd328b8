"""A copy with several writers.

First promotes staging streams of earlier attempts, then stages, seals, promotes and verifies the
pending ranges. A staging stream always holds a prefix of its partition, and old staging streams are
promoted before new ones are written. So the order within a partition survives a crash.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from jsplan.backfill.origin_copy import RunContext
from jsplan.backfill.pending import PendingRanges
from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.retry import (
    POLL_INTERVAL,
    gather_limited,
    retry_transient,
    retry_while_progressing,
)
from jsplan.backfill.schedule import compute_byte_budget, split_by_budget
from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges, subtract_present
from jsplan.backfill.seq_ranges import (
    MAX_LISTED_RANGES,
    MAX_NAMED_MESSAGES,
    OriginState,
    SeqRange,
    count_sequences,
    first_sequences,
    intersect,
    subtract,
)
from jsplan.backfill.shared_pending import SharedParquetPendingScan, SharedPendingScan
from jsplan.backfill.staging import WRITE_SECONDS, Promotion
from jsplan.backfill.tasks import staging_sources, staging_streams
from jsplan.backfill.tasks.capacity import estimate_overhead
from jsplan.backfill.tasks.copy import CopyTask
from jsplan.backfill.tasks.multi_origin_scan import (
    find_duplicate,
    read_staged_messages,
    scan_target_origins,
)
from jsplan.backfill.tasks.partition_writer import build_duplicate_error, decode_sequences
from jsplan.backfill.tasks.partitioning import Partition, PartitionPlan, assign_partitions
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.backfill.transforms import TransformSpec
from jsplan.backfill.windows import WindowClosedError
from jsplan.documents.backfill import MessagesMoved, OriginResult
from jsplan.errors import ApiError, ConnectError, JsplanError

if TYPE_CHECKING:
    from jsplan.backfill.parquet.location import ParquetOrigin

#: More partitions are not faster: a target stores messages with one core.
MAX_PARTITIONS: Final = 8
ResultDict = dict[str, Any]


@dataclass(slots=True)
class PartitionedCopy:
    """One copy of any number of origins. `results` is the current progress of each.

    Only staging streams with this `fingerprint` are resumed. `parquet_origins` are the archives of
    the origins, if they are read from archives.
    """

    context: RunContext
    transforms: TransformSpec
    origins: list[OriginState]
    endpoints: list[Endpoints]
    fingerprint: str
    parquet_origins: Sequence[ParquetOrigin] = ()
    results: list[OriginResult] = field(init=False)
    total_result: OriginResult = field(init=False)
    promotion: Promotion = field(init=False)

    def __post_init__(self) -> None:
        first, context = self.origins[0], self.context
        self.results = [
            OriginResult(origin.origin, origin.target, origin.first, origin.last)
            for origin in self.origins
        ]
        self.total_result = OriginResult(first.origin, first.target, 0, 0)
        self.promotion = Promotion(
            replace(first),
            self.endpoints[0],
            context.runner,
            context.observer,
            context.may_write,
            context.entry_id,
            self.fingerprint,
            self.total_result,
        )

    # --- the sequence -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy the pending messages and verify them.

        Raises RefusedError, JsplanError and ApiError; it can be run again then.
        """

        async def attempt() -> None:
            await self._recover()
            await self._attempt()

        try:
            await retry_while_progressing(
                attempt, lambda: self.total_result.copied, self.context.observer, self._title
            )
        except WindowClosedError:
            await self._recover()
            raise

    async def _recover(self) -> None:
        """Promote all partitions that earlier attempts staged, before anything new is staged."""
        self.context.may_write(WRITE_SECONDS)
        found = await retry_transient(
            self.endpoints[0].target,
            partial(staging_streams.find, self.endpoints[0].target, self.context.entry_id),
        )
        sealed = [await self.promotion.seal(staging) for staging in found]
        recovered = await self._check_staged(sealed) if sealed else []
        for origin in dict.fromkeys(
            [*(staging.origin for staging in sealed), self.origins[0].origin]
        ):
            self.promotion.origin_state.origin = origin
            await self.promotion.recover()
        self.promotion.origin_state.origin = self.origins[0].origin
        for copied in recovered:
            self._count_recovered(copied)

    async def _check_staged(self, found: Sequence[StagingStream]) -> list[dict[str, int]]:
        """Count the messages by origin in the staging streams that are promoted now.

        They are dropped if they have duplicates. That check comes before the first one is attached.
        """
        info = await self._fetch_target_info()
        attached = set(staging_sources.list_staging_sources(info["config"]))
        resumable = [
            staging
            for staging in found
            if staging.messages
            and (staging.name in attached or staging.fingerprint == self.fingerprint)
        ]
        endpoint = self.endpoints[0].target_endpoint
        staged = [
            await asyncio.to_thread(read_staged_messages, endpoint, staging.name, staging.messages)
            for staging in resumable
        ]
        if (
            not attached.intersection(staging.name for staging in resumable)
            and find_duplicate([one.seqs for one in staged]) is not None
        ):
            self.context.observer.warn(
                "The staging streams of an earlier attempt have duplicate messages. "
                "They are dropped"
            )
            for staging in resumable:
                await self.promotion.drop(staging)
            return []
        return [{name: len(seqs) for name, seqs in one.seqs.items()} for one in staged]

    def _count_recovered(self, copied: dict[str, int]) -> None:
        """Add promoted messages by origin, which is named as in `Jsplan-Origin`."""
        for origin, endpoints, result in zip(
            self.origins, self.endpoints, self.results, strict=True
        ):
            result.copied += copied.get(
                f"{endpoints.origin_domain_name}/{origin.origin_address.stream}", 0
            )

    async def _attempt(self) -> None:
        """Copy the pending ranges once. Raises ApiError and ConnectError for transient errors."""
        self.context.require_open()
        for result in self.results:
            result.attempts += 1
        scans, all_pending = await self._scan_pending()
        if not any(pending.spans for pending in all_pending):
            return
        await self._require_estimated_capacity(all_pending)
        results: list[ResultDict] = []
        for part in split_by_budget(all_pending, await self._compute_sequence_budget()):
            self.context.require_open()
            results += await self._copy_portion(part)
        for number, result in enumerate(self.results):
            skipped = self._collect_skipped(number, results)
            result.skipped, result.skipped_count = (
                first_sequences(skipped, MAX_NAMED_MESSAGES),
                count_sequences(skipped),
            )
        await self._add_gaps(scans, all_pending, results)

    async def _compute_sequence_budget(self) -> int | None:
        """Limit the sequences of one portion, which a shuffle loses if the window closes."""
        size = compute_byte_budget(self.context.entry)
        if size is None or not (self.transforms.needs_rows or self.transforms.order == "subject"):
            return None
        states = [info["state"] for info in await self._fetch_origin_infos()]
        messages, bytes_ = (
            sum(int(state[name]) for state in states) for name in ("messages", "bytes")
        )
        return max(1, size * messages // max(1, bytes_))

    async def _copy_portion(self, all_pending: Sequence[PendingRanges]) -> list[ResultDict]:
        """Stage, promote and verify these ranges. Return the results of the partitions."""
        target = await self._fetch_target_info()
        plan, created = await self._build_plan(all_pending, target["config"])
        results: list[ResultDict] = await self._drop_on_failure(
            created, self._run_copy(plan, created, sum(pending.messages for pending in all_pending))
        )
        staged = await self._seal_all(plan, created, results)
        deletes = await self._drop_on_failure(
            created,
            self._require_capacity(sum(s.messages for s in staged), sum(s.bytes for s in staged)),
        )
        equal = await self._promote_all(staged, results, may_lack=deletes)
        self._add_results(results, equal=equal)
        return results

    # --- planning ---------------------------------------------------------------------------------

    async def _scan_pending(self) -> tuple[list[SharedPendingScan], list[PendingRanges]]:
        info = await self._fetch_target_info()
        found = [self._build_scan(number) for number in range(len(self.origins))]
        wanted = await gather_limited(found, lambda one: one.build_query(info))
        if (state := info["state"])["messages"]:
            first, last, endpoint = (
                int(state["first_seq"]),
                int(state["last_seq"]),
                self.endpoints[0].target_endpoint,
            )
            known = await asyncio.to_thread(
                scan_target_origins,
                endpoint,
                self.origins[0].target_address.stream,
                first,
                last,
                wanted,
            )
            for one, there in zip(found, known, strict=True):
                one.existing = there
        return found, await gather_limited(found, lambda one: one.scan())

    def _build_scan(self, number: int) -> SharedPendingScan:
        origin, endpoints, mixed = (
            self.origins[number],
            self.endpoints[number],
            self.transforms.order != "stream",
        )
        if not self.parquet_origins:
            return SharedPendingScan(origin, endpoints, self.context.topology, is_reordered=mixed)
        return SharedParquetPendingScan(
            origin, endpoints, self.context.topology, self.parquet_origins[number], mixed=mixed
        )

    async def _fetch_origin_infos(self) -> list[ResultDict]:
        if self.parquet_origins:
            return [archive.stream_info for archive in self.parquet_origins]
        pairs = list(zip(self.origins, self.endpoints, strict=True))
        return await gather_limited(
            pairs,
            lambda one: staging_sources.require_stream_info(
                one[1].origin, one[0].origin_address.stream
            ),
        )

    async def _build_plan(
        self, all_pending: Sequence[PendingRanges], target: dict[str, Any]
    ) -> tuple[PartitionPlan, list[StagingStream]]:
        """Build the partitions of an attempt, and create their staging streams."""
        transforms, largest = self.transforms, int(target.get("max_msg_size", -1))
        nonempty = sum(bool(pending.spans) for pending in all_pending)
        most = min(
            MAX_PARTITIONS,
            await self.context.runner.count_slots(),
            max(1, sum(pending.messages for pending in all_pending)),
        )
        count = min(most, nonempty) if transforms.order == "stream" else most
        created: list[StagingStream] = []
        for _ in range(count):
            self.context.may_write(WRITE_SECONDS)
            created.append(
                await staging_streams.create(
                    self.endpoints[0].target,
                    self.context.entry_id,
                    self.origins[0].origin,
                    self.fingerprint,
                    target,
                )
            )
        endpoint = self.endpoints[0].target_endpoint
        tasks = tuple(
            CopyTask(
                source=endpoints.source_endpoint,
                domain=endpoints.origin_domain_name,
                stream=origin.origin_address.stream,
                spans=pending.spans,
                filters=tuple(origin.filters),
                target=endpoint,
                ingest_prefix="",
                staging_stream=created[0].name,
                existing=pending.existing,
                coverage=pending.coverage,
                oversize=self.context.entry.oversize,
                max_msg_size=largest,
                files=self.parquet_origins[number].files if self.parquet_origins else (),
                deadline=self.context.deadline,
            )
            for number, (origin, endpoints, pending) in enumerate(
                zip(self.origins, self.endpoints, all_pending, strict=True)
            )
        )
        partitions = tuple(
            Partition(endpoint, staging.name, staging.ingest_prefix) for staging in created
        )
        assigned = (
            assign_partitions([pending.messages for pending in all_pending], count)
            if transforms.order == "stream"
            else ()
        )
        return PartitionPlan(
            partitions,
            tasks,
            transforms.order,
            assigned,
            transforms.where,
            transforms.transform,
            transforms.subject_transform,
            self.context.entry.rate,
        ), created

    async def _require_estimated_capacity(self, all_pending: Sequence[PendingRanges]) -> None:
        """Raise RefusedError before staging if the estimated size exceeds the capacity.

        With SQL or a function there is no estimate.
        """
        if self.transforms.needs_rows:
            return
        infos = await self._fetch_origin_infos()
        messages = size = 0
        for pending, info in zip(all_pending, infos, strict=True):
            count = min(pending.messages, int(info["state"]["messages"]))
            messages, size = (
                messages + count,
                size + count * (info["state"]["bytes"] // max(1, info["state"]["messages"])),
            )
        # The share of a filter is not known.
        if not any(origin.filters for origin in self.origins):
            await self._require_capacity(messages, size)

    async def _require_capacity(self, messages: int, size: int) -> bool:
        return self.context.require_capacity(
            self.origins[0].target,
            await self._fetch_target_info(),
            messages,
            size + estimate_overhead(messages),
        )

    # --- copying ----------------------------------------------------------------------------------

    async def _run_copy(
        self, plan: PartitionPlan, created: Sequence[StagingStream], messages: int
    ) -> list[ResultDict]:
        """Stage everything with Spark, and report progress. Raises RefusedError for duplicates."""
        context = self.context
        await asyncio.gather(
            *(
                staging_streams.require_exclusive_subject({key: api}, created[0])
                for key, api in context.apis.items()
            )
        )
        context.observer.phase(
            f"Copying {self._title}, in {len(created)} partition{'' if len(created) == 1 else 's'}"
        )
        results: list[ResultDict] = await self._watch_progress(
            context.runner.run_partitions(plan, self._title), created, messages
        )
        if plan.transform is not None:
            partitions = [
                {number: decode_sequences(part["seqs"]) for number, part in one["origins"].items()}
                for one in results
            ]
            if (found := find_duplicate(partitions)) is not None:
                raise build_duplicate_error(plan, int(found[0]), found[1])
        return results

    async def _watch_progress(
        self, job: Any, created: Sequence[StagingStream], messages: int
    ) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
            try:
                now = [
                    await staging_streams.refresh(self.endpoints[0].target, staging)
                    for staging in created
                ]
            except ApiError:
                continue  # the copy reports the error
            done = sum(staging.messages for staging in now)
            self.context.observer.event(
                MessagesMoved(
                    self._title,
                    f"{self._title}: copying",
                    done,
                    messages,
                    time.monotonic() - started,
                )
            )
        return task.result()

    async def _seal_all(
        self, plan: PartitionPlan, created: Sequence[StagingStream], results: Sequence[ResultDict]
    ) -> list[StagingStream]:
        """Seal the staging streams. Raises ApiError if one lacks messages of its partition."""
        written = {one["partition"]: one["messages"] for one in results}
        found = [await self.promotion.seal(staging) for staging in created]
        for number, staging in enumerate(found):
            if staging.messages != written.get(number, 0):
                raise ApiError(
                    f"staging stream {staging.name} has {staging.messages:,} messages, but "
                    f"{written.get(number, 0):,} were written by partition {number} of "
                    f"{len(plan.partitions)}"
                )
        return found

    async def _promote_all(
        self, staged: Sequence[StagingStream], results: Sequence[ResultDict], *, may_lack: bool
    ) -> bool:
        """Promote all partitions and verify each. Return True if everything is in the target."""
        hashes = {one["partition"]: one["hashes"] for one in results}
        nonempty = [
            (staging, hashes[number]) for number, staging in enumerate(staged) if staging.messages
        ]
        equal = not nonempty or await self.promotion.promote_partitions(
            [staging for staging, _ in nonempty],
            [blocks for _, blocks in nonempty],
            may_lack=may_lack,
        )
        await self.promotion.drop(*staged)
        return equal

    async def _drop_on_failure(self, created: Sequence[StagingStream], job: Any) -> Any:
        """Delete the staging streams after an error that a retry cannot fix."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                for staging in created:
                    await self.promotion.drop(staging)
            raise

    # --- results ----------------------------------------------------------------------------------

    def _add_results(self, results: Sequence[ResultDict], *, equal: bool) -> None:
        partitions = "1 partition" if len(results) == 1 else f"{len(results)} partitions"
        path = f"spark, in {partitions}, via staging streams"
        if self.parquet_origins:
            path += f", from {self.origins[0].archive}"
        for one in results:
            for number, part in one["origins"].items():
                self.results[int(number)].copied += part["messages"]
                self.results[int(number)].bytes += part["bytes"]
        for result in self.results:
            if result.copied:
                result.verified, result.path = equal, path

    async def _add_gaps(
        self,
        scans: Sequence[SharedPendingScan],
        all_pending: Sequence[PendingRanges],
        results: Sequence[ResultDict],
    ) -> None:
        """Report messages that are deleted at an origin and were not copied as gaps.

        That includes messages that SQL or a function dropped and that were deleted since.
        """
        gone = await gather_limited(scans, lambda one: one.find_gone())
        for number, (origin, pending) in enumerate(zip(self.origins, all_pending, strict=True)):
            if origin.status == "done":
                continue
            left = (
                subtract_present(pending.spans, pending.existing.seq)
                if pending.is_exact
                else list(pending.spans)
            )
            written = group_into_ranges(self._collect_written(number, results))
            gaps = intersect(
                subtract(subtract(left, self._collect_skipped(number, results)), written),
                gone[number],
            )
            self.results[number].gaps, self.results[number].gap_messages = (
                [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
                count_sequences(gaps),
            )

    def _collect_skipped(self, number: int, results: Sequence[ResultDict]) -> list[SeqRange]:
        found = [
            np.arange(first, last + 1)
            for one in results
            for first, last in one["skipped"].get(str(number), [])
        ]
        return group_into_ranges(np.sort(np.concatenate(found))) if found else []

    def _collect_written(self, number: int, results: Sequence[ResultDict]) -> SeqArray:
        found = [
            decode_sequences(one["origins"][str(number)]["seqs"])
            for one in results
            if str(number) in one["origins"]
        ]
        return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    # --- names ------------------------------------------------------------------------------------

    async def _fetch_target_info(self) -> ResultDict:
        target = self.origins[0].target_address.stream
        return await retry_transient(
            self.endpoints[0].target,
            partial(staging_sources.require_stream_info, self.endpoints[0].target, target),
        )

    @property
    def _title(self) -> str:
        first = self.origins[0]
        origins = first.origin if len(self.origins) == 1 else f"{len(self.origins)} origins"
        return f"{origins} to {first.target}"
