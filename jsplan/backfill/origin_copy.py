"""One origin of a backfill, from whatever an earlier attempt left to the proof that everything has arrived.

Nothing reaches the target but from a sealed staging stream, all of it, one after the other. So what the target has is always a beginning
of what is to come, and whoever takes over asks only for what is not there yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from jsplan.backfill.pending import PendingRanges, PendingScan
from jsplan.backfill.pinning import Endpoints, require_same_streams, require_valid_target
from jsplan.backfill.retry import POLL_INTERVAL, retry_transient, retry_while_progressing
from jsplan.backfill.seq_arrays import subtract_present
from jsplan.backfill.seq_ranges import (
    MAX_LISTED_RANGES,
    MAX_NAMED_MESSAGES,
    MAX_SEQ,
    OriginState,
    SeqRange,
    count_sequences,
    first_sequences,
    intersect,
    subtract,
)
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.staging import WRITE_SECONDS, Promotion, WriteGuard
from jsplan.backfill.tasks import staging_sources, staging_streams
from jsplan.backfill.tasks.capacity import estimate_overhead, find_capacity_problem
from jsplan.backfill.tasks.copy import CopyTask, run_copy_task
from jsplan.backfill.tasks.oversize import run_oversize_copy_task
from jsplan.backfill.tasks.staging_recovery import UnprovenTail, is_incomplete
from jsplan.backfill.tasks.staging_streams import SequenceIdentity, StagingStream, hash_origin
from jsplan.backfill.windows import Deadline, WindowClosedError
from jsplan.config.model import Backfill
from jsplan.diagnostics import quote_shell
from jsplan.documents.backfill import MessagesMoved, OriginResult
from jsplan.errors import ApiError, ConnectError, JsplanError, RefusedError
from jsplan.jetstream import DomainApi
from jsplan.options import Observer
from jsplan.topology import Topology


@dataclass(slots=True)
class RunContext:
    """What all legs of a run share. `entry_id` names the entry and its workspace on the servers; at `deadline` copying stops."""

    entry: Backfill
    entry_id: str
    config_hash: str
    topology: Topology
    apis: dict[str, DomainApi]
    runner: SparkRunner
    observer: Observer
    may_write: WriteGuard
    is_allowed: Callable[[str, str], bool]
    deadline: Deadline | None = None

    def require_open(self) -> None:
        """Raise WindowClosedError where nothing more may be copied now."""
        if self.deadline is not None:
            self.deadline.require_open()

    def require_capacity(
        self, address: str, info: dict[str, Any], messages: int, size: int
    ) -> bool:
        """Raise RefusedError where a target takes no more, or would delete messages of its own to take these and that is not allowed;
        whether it will. `info` is its STREAM.INFO.
        """
        found = find_capacity_problem(address, info, messages, size)
        if found is None:
            return False
        if not found.deletes:
            raise RefusedError(
                f"{found.text}. Nothing was changed", hint="Make room there, or raise its limits."
            )
        if not self.is_allowed("DELETES_MESSAGES", address):
            raise RefusedError(
                f"{found.text}. Nothing was changed",
                hint="To allow it: --allow-hazard " + quote_shell(f"DELETES_MESSAGES:{address}"),
            )
        return True


class ResultAccumulator:
    """What a result says of several parts that were copied one after the other: gaps and what was too large of all of them."""

    def __init__(self, result: OriginResult) -> None:
        self._result = result
        self._gaps = list[list[int]]()
        self._skipped = list[SeqRange]()
        self._gap_messages = 0

    def add(self, skipped: list[SeqRange]) -> None:
        """One more part was brought in, and the result has the gaps of it."""
        result = self._result
        self._gaps, self._gap_messages = (
            [*self._gaps, *result.gaps][:MAX_LISTED_RANGES],
            self._gap_messages + result.gap_messages,
        )
        self._skipped += skipped
        result.gaps, result.gap_messages = self._gaps, self._gap_messages
        result.skipped, result.skipped_count = (
            first_sequences(self._skipped, MAX_NAMED_MESSAGES),
            count_sequences(self._skipped),
        )


@dataclass(slots=True)
class OriginCopy:
    """Carries out one leg. `result` says at any time how far it is."""

    context: RunContext
    origin_state: OriginState
    endpoints: Endpoints
    result: OriginResult = field(init=False)
    pending_scan: PendingScan = field(init=False)
    promotion: Promotion = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        leg, work = self.origin_state, self.context
        self.result = OriginResult(leg.origin, leg.target, leg.first, leg.last)
        self.pending_scan = PendingScan(leg, self.endpoints, work.topology)
        text = f"{work.config_hash} {leg.created}"
        self.promotion = Promotion(
            leg,
            self.endpoints,
            work.runner,
            work.observer,
            work.may_write,
            work.entry_id,
            text,
            self.result,
            self._is_complete,
        )

    # --- the sequence -------------------------------------------------------------------------------------------

    async def run(self) -> OriginResult:
        """Copy what is missing and prove it. Raises RefusedError, JsplanError and ApiError; then it can be run again."""
        origin, target = await self._fetch_origin_info(), await self._fetch_target_info()
        require_same_streams(self.origin_state, origin, target)
        require_valid_target(self.origin_state.target, target["config"])
        await self._copy_until_done()
        self._warn_of_untagged()
        if self.origin_state.status == "done":  # what is gone on both sides by now was there once
            self.result.gaps, self.result.gap_messages = (
                self.origin_state.gaps,
                self.origin_state.gap_messages,
            )
        self.result.seconds = time.monotonic() - self._started
        return self.result

    def _warn_of_untagged(self) -> None:
        if count := self.result.natively:
            what = "1 message is" if count == 1 else f"{count:,} messages are"
            self.context.observer.warn(
                f"{what} larger in {self.origin_state.target} than max_payload, by a line that servers add. Since nats-server 2.12 a leafnode link "
                "closes when such a message is read over it: raise max_payload by 1 KiB on both sides of each link to there"
            )

    async def _copy_until_done(self) -> None:
        async def attempt() -> None:
            await self.promotion.recover()
            await self._attempt()

        await retry_while_progressing(
            attempt, lambda: self.result.copied, self.context.observer, self._title
        )

    async def _attempt(self) -> None:
        """Copy what is not there yet. Raises ApiError and ConnectError for what another attempt may not meet."""
        self.context.require_open()
        self.result.attempts += 1
        await self._fetch_origin_info()  # it may have gone away since, and come back
        todo = await self.pending_scan.scan()
        if not todo.spans:
            return
        await self._require_estimated_capacity(todo)
        told = ResultAccumulator(self.result)
        while todo.spans:
            said = await self._copy_part(todo, told)
            todo = todo.restrict(said.get("left") or MAX_SEQ, MAX_SEQ)
            if todo.spans and said.get(
                "closed"
            ):  # by the clock of whoever copies, which need not be ours
                raise WindowClosedError(
                    "the window closed", hint="The next one goes on from there."
                )

    async def _copy_part(self, todo: PendingRanges, told: ResultAccumulator) -> dict[str, Any]:
        """Copy and prove what one staging stream takes: all of it, as a rule. What the task said, with the sequence that comes next."""
        target = await self._fetch_target_info()
        self.context.may_write(WRITE_SECONDS)
        stage = await self._create_staging_stream(todo, target["config"])
        said: dict[str, Any] = await self._drop_on_failure(
            stage, self._run_copy(stage, self._build_task(stage, todo, target["config"]))
        )
        left: int | None = said.get("left")
        stage = await self.promotion.seal(stage)
        if stage.messages != said["messages"]:
            raise ApiError(
                f"staging stream {stage.name} has {stage.messages:,} messages where {said['messages']:,} were written"
            )
        skipped = [SeqRange(*span) for span in said["skipped"]]
        self.result.path = "spark, via a staging stream"
        deletes = await self._drop_on_failure(
            stage,
            self._require_capacity(stage.messages, stage.bytes + estimate_overhead(stage.messages)),
        )
        expected = await self._find_expected(
            todo.restrict(0, left - 1) if left is not None else todo, skipped
        )
        await self.promotion.promote(stage, said["hashes"], expected=expected, may_lack=deletes)
        told.add(skipped)
        await self.promotion.drop(stage)
        return said

    async def _create_staging_stream(
        self, todo: PendingRanges, target: dict[str, Any]
    ) -> StagingStream:
        leg, entry = self.origin_state, self.context.entry
        mark = hash_origin(
            self.endpoints.origin_domain_name, leg.origin_address.stream, leg.created
        )
        numbering = (
            SequenceIdentity(mark, todo.spans[0].first) if entry.oversize == "native" else None
        )
        return await staging_streams.create(
            self.endpoints.target,
            self.context.entry_id,
            leg.origin,
            self.promotion.fingerprint,
            target,
            numbering,
        )

    async def _require_estimated_capacity(self, todo: PendingRanges) -> None:
        """Raise RefusedError before anything is copied if there will be no room for it: as far as that can be told then."""
        info, target = await self._fetch_origin_info(), await self._fetch_target_info()
        each = info["state"]["bytes"] // max(1, info["state"]["messages"])
        if (
            find_capacity_problem(
                self.origin_state.target, target, todo.messages, todo.messages * each
            )
            is not None
        ):
            messages = min(todo.messages, await self.pending_scan.count_messages())
            await self._require_capacity(messages, messages * each)

    async def _require_capacity(self, messages: int, size: int) -> bool:
        return self.context.require_capacity(
            self.origin_state.target, await self._fetch_target_info(), messages, size
        )

    # --- doing it -----------------------------------------------------------------------------------------------

    def _build_task(
        self, stage: StagingStream, todo: PendingRanges, target: dict[str, Any]
    ) -> CopyTask:
        entry, leg, largest = (
            self.context.entry,
            self.origin_state,
            int(target.get("max_msg_size", -1)),
        )
        return CopyTask(
            self.endpoints.source_endpoint,
            self.endpoints.origin_domain_name,
            self.origin_state.origin_address.stream,
            todo.spans,
            tuple(leg.filters),
            self.endpoints.target_endpoint,
            stage.ingest_prefix,
            stage.name,
            todo.existing,
            todo.coverage,
            entry.oversize,
            largest,
            entry.rate,
            deadline=self.context.deadline,
            first_staged_seq=stage.base_seq + 1,
        )

    async def _run_copy(self, stage: StagingStream, task: CopyTask) -> dict[str, Any]:
        """Let Spark copy into the stage, telling how far it is."""
        await staging_streams.require_exclusive_subject(self.context.apis, stage)
        await self.context.runner.session()
        self.context.observer.phase(f"Copying {self._title}")
        carry_out = run_oversize_copy_task if task.oversize == "native" else run_copy_task
        job = self.context.runner.run([partial(carry_out, task)], self._title)
        said = await self._watch_progress(
            job,
            "copying",
            count_sequences(task.spans),
            partial(staging_streams.refresh, self.endpoints.target, stage),
        )
        return dict(said[0][-1])

    async def _drop_on_failure(self, stage: StagingStream, job: Any) -> Any:
        """Take a stage away again that nothing good can come of: after what will be no other in the next attempt."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                await self.promotion.drop(stage)
            raise

    async def _is_complete(self, stage: StagingStream, tail: UnprovenTail) -> bool:
        """Whether nothing was lost on the way to a stage of an earlier attempt. Asks the origin for what its last messages are among."""
        if not len(tail.seqs):
            return True
        todo = (await self.pending_scan.scan()).restrict(
            tail.last_proven_seq + 1, int(tail.seqs.max())
        )
        task = replace(
            self._build_task(stage, todo, (await self._fetch_target_info())["config"]),
            deadline=None,
        )
        return not await asyncio.to_thread(is_incomplete, task, tail)

    async def _find_expected(
        self, todo: PendingRanges, skipped: list[SeqRange]
    ) -> tuple[SeqRange, ...]:
        """Sequences that must have been copied, or else are gone at the origin. Of what is chosen by subject only what is gone counts."""
        if self.origin_state.status == "done":
            return ()
        left = subtract(
            subtract_present(todo.spans, todo.existing.seq) if todo.is_exact else todo.spans,
            skipped,
        )
        if not self.origin_state.filters and not todo.coverage and todo.is_exact:
            return tuple(left)
        return tuple(intersect(left, await self.pending_scan.find_gone()))

    async def _watch_progress(
        self, job: Any, what: str, messages: int, look_at: Callable[[], Any]
    ) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
            try:
                stage = await look_at()
            except ApiError:
                continue  # the copy itself says what is wrong
            self.context.observer.event(
                MessagesMoved(
                    self.origin_state.origin,
                    f"{self._title}: {what}",
                    stage.messages,
                    messages,
                    time.monotonic() - started,
                )
            )
        return task.result()

    # --- names --------------------------------------------------------------------------------------------------

    async def _fetch_origin_info(self) -> dict[str, Any]:
        return await retry_transient(
            self.endpoints.origin,
            partial(
                staging_sources.require_stream_info,
                self.endpoints.origin,
                self.origin_state.origin_address.stream,
            ),
        )

    async def _fetch_target_info(self) -> dict[str, Any]:
        return await retry_transient(
            self.endpoints.target,
            partial(
                staging_sources.require_stream_info,
                self.endpoints.target,
                self.origin_state.target_address.stream,
            ),
        )

    @property
    def _title(self) -> str:
        return f"{self.origin_state.origin} to {self.origin_state.target}"
