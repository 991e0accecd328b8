"""Carries out a copy in lanes: what an earlier attempt left is brought in first, then what is missing is staged, lane by lane sealed,
brought in by the server, and compared.

Each lane is an exact beginning of what it would become, and nothing new is staged before everything old is in: so the order within a
lane survives every death.
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

#: More lanes than these gain nothing: a target takes what comes with one core.
MAX_PARTITIONS: Final = 8
ResultDict = dict[str, Any]


@dataclass(slots=True)
class PartitionedCopy:
    """One copy of any number of origins. `results` say at any time how far each of them is; `fingerprint` is what stages must be made for.

    `parquet_origins` is there where all of it comes out of an archive: what that has of each origin.
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
        first, work = self.origins[0], self.context
        self.results = [
            OriginResult(leg.origin, leg.target, leg.first, leg.last) for leg in self.origins
        ]
        self.total_result = OriginResult(first.origin, first.target, 0, 0)
        self.promotion = Promotion(
            replace(first),
            self.endpoints[0],
            work.runner,
            work.observer,
            work.may_write,
            work.entry_id,
            self.fingerprint,
            self.total_result,
        )

    # --- the sequence -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Copy what is missing and prove it. Raises RefusedError, JsplanError and ApiError; then it can be run again."""

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
        """Bring in what attempts before this one staged: all of their lanes, before anything new is staged."""
        self.context.may_write(WRITE_SECONDS)
        found = await retry_transient(
            self.endpoints[0].target,
            partial(staging_streams.find, self.endpoints[0].target, self.context.entry_id),
        )
        sealed = [await self.promotion.seal(stage) for stage in found]
        taken = await self._check_staged(sealed) if sealed else []
        for origin in dict.fromkeys([*(stage.origin for stage in sealed), self.origins[0].origin]):
            self.promotion.origin_state.origin = origin
            await self.promotion.recover()
        self.promotion.origin_state.origin = self.origins[0].origin
        for copied in taken:
            self._count_recovered(copied)

    async def _check_staged(self, found: Sequence[StagingStream]) -> list[dict[str, int]]:
        """How many messages of which origins the lanes have that are brought in now. They are dropped where nobody had made sure that
        each message is there once: that is done before the first lane is attached.
        """
        info = await self._fetch_target_info()
        attached = set(staging_sources.list_staging_sources(info["config"]))
        mine = [
            stage
            for stage in found
            if stage.messages and (stage.name in attached or stage.fingerprint == self.fingerprint)
        ]
        way = self.endpoints[0].target_endpoint
        staged = [
            await asyncio.to_thread(read_staged_messages, way, stage.name, stage.messages)
            for stage in mine
        ]
        if (
            not attached.intersection(stage.name for stage in mine)
            and find_duplicate([one.seqs for one in staged]) is not None
        ):
            self.context.observer.warn(
                "What an earlier attempt had staged has several messages of one: it is dropped"
            )
            for stage in mine:
                await self.promotion.drop(stage)
            return []
        return [{name: len(seqs) for name, seqs in one.seqs.items()} for one in staged]

    def _count_recovered(self, copied: dict[str, int]) -> None:
        """So many messages of origins, which are named as in `Jsplan-Origin`, have come in."""
        for leg, ends, result in zip(self.origins, self.endpoints, self.results, strict=True):
            result.copied += copied.get(f"{ends.origin_domain_name}/{leg.origin_address.stream}", 0)

    async def _attempt(self) -> None:
        """Copy what is not there yet. Raises ApiError and ConnectError for what another attempt may not meet."""
        self.context.require_open()
        for result in self.results:
            result.attempts += 1
        missing, todos = await self._scan_pending()
        if not any(todo.spans for todo in todos):
            return
        await self._require_estimated_capacity(todos)
        every: list[ResultDict] = []
        for part in split_by_budget(todos, await self._compute_sequence_budget()):
            self.context.require_open()
            every += await self._copy_portion(part)
        for number, result in enumerate(self.results):
            skipped = self._collect_skipped(number, every)
            result.skipped, result.skipped_count = (
                first_sequences(skipped, MAX_NAMED_MESSAGES),
                count_sequences(skipped),
            )
        await self._add_gaps(missing, todos, every)

    async def _compute_sequence_budget(self) -> int | None:
        """So many sequences are copied in one go: of what passes the shuffle nothing is kept when the window closes meanwhile."""
        size = compute_byte_budget(self.context.entry)
        if size is None or not (self.transforms.needs_rows or self.transforms.order == "subject"):
            return None
        states = [info["state"] for info in await self._fetch_origin_infos()]
        messages, bytes_ = (
            sum(int(state[name]) for state in states) for name in ("messages", "bytes")
        )
        return max(1, size * messages // max(1, bytes_))

    async def _copy_portion(self, todos: Sequence[PendingRanges]) -> list[ResultDict]:
        """Stage these, bring them in, prove them; what the lanes said."""
        target = await self._fetch_target_info()
        job, made = await self._build_plan(todos, target["config"])
        said: list[ResultDict] = await self._drop_on_failure(
            made, self._run_copy(job, made, sum(todo.messages for todo in todos))
        )
        staged = await self._seal_all(job, made, said)
        deletes = await self._drop_on_failure(
            made,
            self._require_capacity(sum(s.messages for s in staged), sum(s.bytes for s in staged)),
        )
        equal = await self._promote_all(staged, said, may_lack=deletes)
        self._add_results(said, equal=equal)
        return said

    # --- what is to be done -------------------------------------------------------------------------------------

    async def _scan_pending(self) -> tuple[list[SharedPendingScan], list[PendingRanges]]:
        info = await self._fetch_target_info()
        found = [self._build_scan(number) for number in range(len(self.origins))]
        wanted = await gather_limited(found, lambda one: one.build_query(info))
        if (state := info["state"])["messages"]:
            first, last, way = (
                int(state["first_seq"]),
                int(state["last_seq"]),
                self.endpoints[0].target_endpoint,
            )
            known = await asyncio.to_thread(
                scan_target_origins, way, self.origins[0].target_address.stream, first, last, wanted
            )
            for one, there in zip(found, known, strict=True):
                one.existing = there
        return found, await gather_limited(found, lambda one: one.scan())

    def _build_scan(self, number: int) -> SharedPendingScan:
        leg, ends, mixed = (
            self.origins[number],
            self.endpoints[number],
            self.transforms.order != "stream",
        )
        if not self.parquet_origins:
            return SharedPendingScan(leg, ends, self.context.topology, is_reordered=mixed)
        return SharedParquetPendingScan(
            leg, ends, self.context.topology, self.parquet_origins[number], mixed=mixed
        )

    async def _fetch_origin_infos(self) -> list[ResultDict]:
        if self.parquet_origins:
            return [held.stream_info for held in self.parquet_origins]
        pairs = list(zip(self.origins, self.endpoints, strict=True))
        return await gather_limited(
            pairs,
            lambda one: staging_sources.require_stream_info(
                one[1].origin, one[0].origin_address.stream
            ),
        )

    async def _build_plan(
        self, todos: Sequence[PendingRanges], target: dict[str, Any]
    ) -> tuple[PartitionPlan, list[StagingStream]]:
        """The lanes of an attempt, with the staging streams that it may write to."""
        shape, largest = self.transforms, int(target.get("max_msg_size", -1))
        busy = sum(bool(todo.spans) for todo in todos)
        most = min(
            MAX_PARTITIONS,
            await self.context.runner.count_slots(),
            max(1, sum(todo.messages for todo in todos)),
        )
        count = min(most, busy) if shape.order == "stream" else most
        made: list[StagingStream] = []
        for _ in range(count):
            self.context.may_write(WRITE_SECONDS)
            made.append(
                await staging_streams.create(
                    self.endpoints[0].target,
                    self.context.entry_id,
                    self.origins[0].origin,
                    self.fingerprint,
                    target,
                )
            )
        way = self.endpoints[0].target_endpoint
        legs = tuple(
            CopyTask(
                source=ends.source_endpoint,
                domain=ends.origin_domain_name,
                stream=leg.origin_address.stream,
                spans=todo.spans,
                filters=tuple(leg.filters),
                target=way,
                ingest_prefix="",
                staging_stream=made[0].name,
                existing=todo.existing,
                coverage=todo.coverage,
                oversize=self.context.entry.oversize,
                max_msg_size=largest,
                files=self.parquet_origins[number].files if self.parquet_origins else (),
                deadline=self.context.deadline,
            )
            for number, (leg, ends, todo) in enumerate(
                zip(self.origins, self.endpoints, todos, strict=True)
            )
        )
        lanes = tuple(Partition(way, stage.name, stage.ingest_prefix) for stage in made)
        dealt = (
            assign_partitions([todo.messages for todo in todos], count)
            if shape.order == "stream"
            else ()
        )
        return PartitionPlan(
            lanes,
            legs,
            shape.order,
            dealt,
            shape.where,
            shape.transform,
            shape.subject_transform,
            self.context.entry.rate,
        ), made

    async def _require_estimated_capacity(self, todos: Sequence[PendingRanges]) -> None:
        """Raise RefusedError before anything is staged if there will be no room for it: as far as that can be told then, which with SQL
        or a function is not at all.
        """
        if self.transforms.needs_rows:
            return
        infos = await self._fetch_origin_infos()
        messages = size = 0
        for todo, info in zip(todos, infos, strict=True):
            count = min(todo.messages, int(info["state"]["messages"]))
            messages, size = (
                messages + count,
                size + count * (info["state"]["bytes"] // max(1, info["state"]["messages"])),
            )
        if not any(
            leg.filters for leg in self.origins
        ):  # of what matches a filter nobody knows how much that is
            await self._require_capacity(messages, size)

    async def _require_capacity(self, messages: int, size: int) -> bool:
        return self.context.require_capacity(
            self.origins[0].target,
            await self._fetch_target_info(),
            messages,
            size + estimate_overhead(messages),
        )

    # --- doing it -----------------------------------------------------------------------------------------------

    async def _run_copy(
        self, job: PartitionPlan, made: Sequence[StagingStream], messages: int
    ) -> list[ResultDict]:
        """Let Spark stage everything, telling how far it is. Raises RefusedError where a message came out more than once."""
        work = self.context
        await asyncio.gather(
            *(
                staging_streams.require_exclusive_subject({key: api}, made[0])
                for key, api in work.apis.items()
            )
        )
        work.observer.phase(
            f"Copying {self._title}, in {len(made)} partition{'' if len(made) == 1 else 's'}"
        )
        said: list[ResultDict] = await self._watch_progress(
            work.runner.run_partitions(job, self._title), made, messages
        )
        if job.transform is not None:
            lanes = [
                {leg: decode_sequences(told["seqs"]) for leg, told in one["origins"].items()}
                for one in said
            ]
            if (found := find_duplicate(lanes)) is not None:
                raise build_duplicate_error(job, int(found[0]), found[1])
        return said

    async def _watch_progress(self, job: Any, made: Sequence[StagingStream], messages: int) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
            try:
                now = [
                    await staging_streams.refresh(self.endpoints[0].target, stage) for stage in made
                ]
            except ApiError:
                continue  # the copy itself says what is wrong
            done = sum(stage.messages for stage in now)
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
        self, job: PartitionPlan, made: Sequence[StagingStream], said: Sequence[ResultDict]
    ) -> list[StagingStream]:
        """The stages as they remain. Raises ApiError where one does not have what its lane has written."""
        wrote = {one["partition"]: one["messages"] for one in said}
        found = [await self.promotion.seal(stage) for stage in made]
        for number, stage in enumerate(found):
            if stage.messages != wrote.get(number, 0):
                raise ApiError(
                    f"staging stream {stage.name} has {stage.messages:,} messages where {wrote.get(number, 0):,} were written by partition "
                    f"{number} of {len(job.partitions)}"
                )
        return found

    async def _promote_all(
        self, staged: Sequence[StagingStream], said: Sequence[ResultDict], *, may_lack: bool
    ) -> bool:
        """Let the target take all lanes, and prove each; whether all of it is there."""
        hashes = {one["partition"]: one["hashes"] for one in said}
        some = [(stage, hashes[number]) for number, stage in enumerate(staged) if stage.messages]
        equal = not some or await self.promotion.promote_partitions(
            [stage for stage, _ in some], [one for _, one in some], may_lack=may_lack
        )
        await self.promotion.drop(*staged)
        return equal

    async def _drop_on_failure(self, made: Sequence[StagingStream], job: Any) -> Any:
        """Take the stages away again that nothing good can come of: after what will be no other in the next attempt."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                for stage in made:
                    await self.promotion.drop(stage)
            raise

    # --- what became of it --------------------------------------------------------------------------------------

    def _add_results(self, said: Sequence[ResultDict], *, equal: bool) -> None:
        path = (
            f"spark, in {len(said)} partition{'' if len(said) == 1 else 's'}, via staging streams"
        )
        if self.parquet_origins:
            path += f", from {self.origins[0].archive}"
        for one in said:
            for leg, told in one["origins"].items():
                self.results[int(leg)].copied += told["messages"]
                self.results[int(leg)].bytes += told["bytes"]
        for result in self.results:
            if result.copied:
                result.verified, result.path = equal, path

    async def _add_gaps(
        self,
        missing: Sequence[SharedPendingScan],
        todos: Sequence[PendingRanges],
        said: Sequence[ResultDict],
    ) -> None:
        """What is gone at an origin and was not copied is a gap. What was left out by SQL or a function was there; what has gone since
        counts as a gap: nobody can tell any more.
        """
        gone = await gather_limited(missing, lambda one: one.find_gone())
        for number, (leg, todo) in enumerate(zip(self.origins, todos, strict=True)):
            if leg.status == "done":
                continue
            left = (
                subtract_present(todo.spans, todo.existing.seq)
                if todo.is_exact
                else list(todo.spans)
            )
            written = group_into_ranges(self._collect_written(number, said))
            gaps = intersect(
                subtract(subtract(left, self._collect_skipped(number, said)), written), gone[number]
            )
            self.results[number].gaps, self.results[number].gap_messages = (
                [list(gap) for gap in gaps[:MAX_LISTED_RANGES]],
                count_sequences(gaps),
            )

    def _collect_skipped(self, leg: int, said: Sequence[ResultDict]) -> list[SeqRange]:
        found = [
            np.arange(first, last + 1)
            for one in said
            for first, last in one["skipped"].get(str(leg), [])
        ]
        return group_into_ranges(np.sort(np.concatenate(found))) if found else []

    def _collect_written(self, leg: int, said: Sequence[ResultDict]) -> SeqArray:
        found = [
            decode_sequences(one["origins"][str(leg)]["seqs"])
            for one in said
            if str(leg) in one["origins"]
        ]
        return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    # --- names --------------------------------------------------------------------------------------------------

    async def _fetch_target_info(self) -> ResultDict:
        target = self.origins[0].target_address.stream
        return await retry_transient(
            self.endpoints[0].target,
            partial(staging_sources.require_stream_info, self.endpoints[0].target, target),
        )

    @property
    def _title(self) -> str:
        first = self.origins[0]
        return f"{first.origin if len(self.origins) == 1 else f'{len(self.origins)} origins'} to {first.target}"
