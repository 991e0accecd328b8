"""The copy of one origin through staging streams, with recovery and comparison.

The target is filled only from sealed staging streams, in order, so it always holds a prefix of the
copy. A resumed run reads only the rest.
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
from jsplan.backfill.tasks.staging_recovery import UnprovenTail, is_incomplete
from jsplan.backfill.tasks.staging_streams import StagingStream
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
    """The objects that all copies of a run share.

    `entry_id` names the entry and its workspace on the servers. Copying stops at `deadline`.
    """

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
        """Raise WindowClosedError if nothing more may be copied now."""
        if self.deadline is not None:
            self.deadline.require_open()

    def require_capacity(
        self, address: str, info: dict[str, Any], messages: int, size: int
    ) -> bool:
        """Check the capacity of a target. Return True if it will delete messages of its own.

        Raises RefusedError if it cannot take these messages, or may not delete others for them.
        `info` is its STREAM.INFO.
        """
        problem = find_capacity_problem(address, info, messages, size)
        if problem is None:
            return False
        if not problem.deletes:
            raise RefusedError(
                f"{problem.text}. Nothing was changed",
                hint="Delete messages there, or raise its limits.",
            )
        if not self.is_allowed("DELETES_MESSAGES", address):
            raise RefusedError(
                f"{problem.text}. Nothing was changed",
                hint="To allow it: --allow-hazard " + quote_shell(f"DELETES_MESSAGES:{address}"),
            )
        return True


@dataclass(slots=True)
class OriginCopy:
    """The copy of one origin by Spark. `result` is its current progress."""

    context: RunContext
    origin_state: OriginState
    endpoints: Endpoints
    result: OriginResult = field(init=False)
    pending_scan: PendingScan = field(init=False)
    promotion: Promotion = field(init=False)
    _started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        state, context = self.origin_state, self.context
        self.result = OriginResult(state.origin, state.target, state.first, state.last)
        self.pending_scan = PendingScan(state, self.endpoints, context.topology)
        fingerprint = f"{context.config_hash} {state.created}"
        self.promotion = Promotion(
            state,
            self.endpoints,
            context.runner,
            context.observer,
            context.may_write,
            context.entry_id,
            fingerprint,
            self.result,
            self._is_complete,
        )

    # --- the sequence -----------------------------------------------------------------------------

    async def run(self) -> OriginResult:
        """Copy the pending messages and verify them.

        Raises RefusedError, JsplanError and ApiError; it can be run again then.
        """
        origin, target = await self._fetch_origin_info(), await self._fetch_target_info()
        require_same_streams(self.origin_state, origin, target)
        require_valid_target(self.origin_state.target, target["config"])
        await self._copy_until_done()
        if self.origin_state.status == "done":  # messages deleted since were copied
            self.result.gaps, self.result.gap_messages = (
                self.origin_state.gaps,
                self.origin_state.gap_messages,
            )
        self.result.seconds = time.monotonic() - self._started
        return self.result

    async def _copy_until_done(self) -> None:
        async def attempt() -> None:
            await self.promotion.recover()
            await self._attempt()

        await retry_while_progressing(
            attempt, lambda: self.result.copied, self.context.observer, self._title
        )

    async def _attempt(self) -> None:
        """Copy the pending ranges once. Raises ApiError and ConnectError for transient errors."""
        self.context.require_open()
        self.result.attempts += 1
        await self._fetch_origin_info()  # reconnect if it was offline
        pending = await self.pending_scan.scan()
        if not pending.spans:
            return
        await self._require_estimated_capacity(pending)
        next_seq = await self._copy_pending(pending)
        if next_seq is not None and pending.restrict(next_seq, MAX_SEQ).spans:
            raise WindowClosedError("the window closed", hint="The next window resumes the copy.")

    async def _copy_pending(self, pending: PendingRanges) -> int | None:
        """Copy the pending ranges through one staging stream, and verify them.

        Returns the next sequence to copy if the window closed early, by the clock of the task.
        """
        target = await self._fetch_target_info()
        self.context.may_write(WRITE_SECONDS)
        staging = await staging_streams.create(
            self.endpoints.target,
            self.context.entry_id,
            self.origin_state.origin,
            self.promotion.fingerprint,
            target["config"],
        )
        outcome: dict[str, Any] = await self._drop_on_failure(
            staging, self._run_copy(staging, self._build_task(staging, pending, target["config"]))
        )
        next_seq: int | None = outcome.get("left")
        staging = await self.promotion.seal(staging)
        if staging.messages != outcome["messages"]:
            raise ApiError(
                f"staging stream {staging.name} has {staging.messages:,} messages, "
                f"but {outcome['messages']:,} were written"
            )
        skipped = [SeqRange(*span) for span in outcome["skipped"]]
        self.result.path = "spark, via a staging stream"
        deletes = await self._drop_on_failure(
            staging,
            self._require_capacity(
                staging.messages, staging.bytes + estimate_overhead(staging.messages)
            ),
        )
        expected = await self._find_expected(
            pending.restrict(0, next_seq - 1) if next_seq is not None else pending, skipped
        )
        await self.promotion.promote(
            staging, outcome["hashes"], expected=expected, may_lack=deletes
        )
        self.result.skipped, self.result.skipped_count = (
            first_sequences(skipped, MAX_NAMED_MESSAGES),
            count_sequences(skipped),
        )
        await self.promotion.drop(staging)
        return next_seq

    async def _require_estimated_capacity(self, pending: PendingRanges) -> None:
        """Raise RefusedError before the copy if the estimated size exceeds the capacity."""
        info, target = await self._fetch_origin_info(), await self._fetch_target_info()
        average_size = info["state"]["bytes"] // max(1, info["state"]["messages"])
        if (
            find_capacity_problem(
                self.origin_state.target, target, pending.messages, pending.messages * average_size
            )
            is not None
        ):
            messages = min(pending.messages, await self.pending_scan.count_messages())
            await self._require_capacity(messages, messages * average_size)

    async def _require_capacity(self, messages: int, size: int) -> bool:
        return self.context.require_capacity(
            self.origin_state.target, await self._fetch_target_info(), messages, size
        )

    # --- doing it ---------------------------------------------------------------------------------

    def _build_task(
        self, staging: StagingStream, pending: PendingRanges, target: dict[str, Any]
    ) -> CopyTask:
        entry, state, largest = (
            self.context.entry,
            self.origin_state,
            int(target.get("max_msg_size", -1)),
        )
        return CopyTask(
            self.endpoints.source_endpoint,
            self.endpoints.origin_domain_name,
            self.origin_state.origin_address.stream,
            pending.spans,
            tuple(state.filters),
            self.endpoints.target_endpoint,
            staging.ingest_prefix,
            staging.name,
            pending.existing,
            pending.coverage,
            entry.oversize,
            largest,
            entry.rate,
            deadline=self.context.deadline,
        )

    async def _run_copy(self, staging: StagingStream, task: CopyTask) -> dict[str, Any]:
        """Copy into the staging stream with Spark, and report progress."""
        await staging_streams.require_exclusive_subject(self.context.apis, staging)
        await self.context.runner.session()
        self.context.observer.phase(f"Copying {self._title}")
        job = self.context.runner.run([partial(run_copy_task, task)], self._title)
        outcome = await self._watch_progress(
            job,
            "copying",
            count_sequences(task.spans),
            partial(staging_streams.refresh, self.endpoints.target, staging),
        )
        return dict(outcome[0][-1])

    async def _drop_on_failure(self, staging: StagingStream, job: Any) -> Any:
        """Delete the staging stream after an error that a retry cannot fix."""
        try:
            return await job
        except JsplanError as error:
            if not isinstance(error, ApiError | ConnectError):
                await self.promotion.drop(staging)
            raise

    async def _is_complete(self, staging: StagingStream, tail: UnprovenTail) -> bool:
        """Check that a staging stream of an earlier attempt lacks no message of the origin."""
        if not len(tail.seqs):
            return True
        pending = (await self.pending_scan.scan()).restrict(
            tail.last_proven_seq + 1, int(tail.seqs.max())
        )
        task = replace(
            self._build_task(staging, pending, (await self._fetch_target_info())["config"]),
            deadline=None,
        )
        return not await asyncio.to_thread(is_incomplete, task, tail)

    async def _find_expected(
        self, pending: PendingRanges, skipped: list[SeqRange]
    ) -> tuple[SeqRange, ...]:
        """Find sequences that must be copied or deleted at the origin.

        With filters, find only the deleted ones.
        """
        if self.origin_state.status == "done":
            return ()
        uncopied = subtract(
            subtract_present(pending.spans, pending.existing.seq)
            if pending.is_exact
            else pending.spans,
            skipped,
        )
        if not self.origin_state.filters and not pending.coverage and pending.is_exact:
            return tuple(uncopied)
        return tuple(intersect(uncopied, await self.pending_scan.find_gone()))

    async def _watch_progress(
        self, job: Any, action: str, messages: int, refresh: Callable[[], Any]
    ) -> Any:
        task, started = asyncio.ensure_future(job), time.monotonic()
        while not (await asyncio.wait([task], timeout=POLL_INTERVAL))[0]:
            try:
                staging = await refresh()
            except ApiError:
                continue  # the copy reports the error
            self.context.observer.event(
                MessagesMoved(
                    self.origin_state.origin,
                    f"{self._title}: {action}",
                    staging.messages,
                    messages,
                    time.monotonic() - started,
                )
            )
        return task.result()

    # --- names ------------------------------------------------------------------------------------

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
