"""Brings what is staged into the target: what this run has copied, and what attempts before it left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from jsplan.address import Address
from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.protocol.stream_info import find_first_seq_at, parse_time
from jsplan.backfill.retry import retry_transient
from jsplan.backfill.seq_ranges import OriginState, SeqRange
from jsplan.backfill.spark_runner import SparkRunner
from jsplan.backfill.tasks import staging_sources, staging_streams
from jsplan.backfill.tasks.staging_recovery import UnprovenTail, read_staging_stream
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.backfill.tasks.target_scan import PromotionScan, scan_promotions
from jsplan.documents.backfill import OriginResult
from jsplan.errors import JsplanError
from jsplan.options import Observer
from jsplan.units import SECOND

WriteGuard = Callable[[float], float]
#: Whether the tail of a sealed stage lacks nothing.
CompletenessCheck = Callable[[StagingStream, UnprovenTail], Awaitable[bool]]
#: How long a request that writes may take at most: the lock must be ours for as long. Seconds.
WRITE_SECONDS: Final = 30.0
#: By how much the clocks of the servers of one domain may differ.
MAX_CLOCK_SKEW: Final = 60 * SECOND


async def _has_no_tail(_stage: StagingStream, tail: UnprovenTail) -> bool:
    return not len(tail.seqs)


@dataclass(slots=True)
class Promotion:
    """What one leg needs for it. `entry_id` names the entry and its workspace on the servers, `fingerprint` what a stage must have been made for."""

    origin_state: OriginState
    endpoints: Endpoints
    runner: SparkRunner
    observer: Observer
    may_write: WriteGuard
    entry_id: str
    fingerprint: str
    result: OriginResult
    is_complete: CompletenessCheck = _has_no_tail

    async def recover(self) -> None:
        """Bring in what attempts before this one wrote, and leave nothing of them behind.

        A stage that the target has as a source was begun to be brought in; one that has not been may be of another text of the entry,
        or of a stream that its origin was before, and is dropped then. Raises LeaseLostError, JsplanError and ApiError.
        """
        self.may_write(WRITE_SECONDS)
        for stage in await retry_transient(
            self.endpoints.target,
            partial(staging_streams.find, self.endpoints.target, self.entry_id),
        ):
            if stage.origin == self.origin_state.origin:
                await self._recover_stream(stage)
        await self._write(
            partial(
                staging_sources.detach_staging_streams, self.endpoints.target, self.target_stream
            )
        )

    async def _recover_stream(self, stage: StagingStream) -> None:
        sealed = await self.seal(stage)
        info = await retry_transient(
            self.endpoints.target,
            partial(staging_sources.require_stream_info, self.endpoints.target, self.target_stream),
        )
        begun = stage.name in staging_sources.list_staging_sources(info["config"])
        if sealed.messages and (begun or stage.fingerprint == self.fingerprint):
            self.observer.phase(f"Resuming with {sealed.messages:,} messages of an earlier attempt")
            origin = Address.parse(self.origin_state.origin).stream
            hashes, tail = await asyncio.to_thread(
                read_staging_stream,
                self.endpoints.target_endpoint,
                stage.name,
                sealed.messages,
                self.endpoints.origin_domain_name,
                origin,
                sealed.base_seq,
            )
            if begun or await self.is_complete(sealed, tail):  # who began had made sure of it
                await self.promote(
                    sealed,
                    hashes,
                    since=await asyncio.to_thread(self._find_start, stage),
                    may_lack=True,
                )
            else:
                self.observer.warn(
                    f"a message was lost on its way to staging stream {stage.name}; it is dropped, and copied again"
                )
        await self.drop(sealed)

    def _find_start(self, stage: StagingStream) -> int:
        """The target's sequence from which on it may have something of a stage: none is older than the stage is."""
        way = self.endpoints.target_endpoint
        wire = way.open()
        try:
            return find_first_seq_at(
                wire, way.api_prefix, self.target_stream, parse_time(stage.created) - MAX_CLOCK_SKEW
            )
        finally:
            wire.close()

    async def promote(
        self,
        stage: StagingStream,
        hashes: list[str],
        *,
        expected: tuple[SeqRange, ...] = (),
        since: int | None = None,
        may_lack: bool = False,
    ) -> None:
        """Let the target take all of a sealed stage, and prove that it has. `since`: some of it may be there, from that sequence on;
        `may_lack`: the target may have deleted some of it again. Raises ApiError, and JsplanError where it did not take everything.
        """
        await self._promote_all([stage], [hashes], "comparing", expected, since, may_lack=may_lack)

    async def promote_partitions(
        self, staged: Sequence[StagingStream], hashes: Sequence[list[str]], *, may_lack: bool
    ) -> bool:
        """The same for several sealed stages at once: each time that a target gets a source its server looks through all that it has, and
        one reading shows all of them. Whether all of it is there.
        """
        return await self._promote_all(
            staged, hashes, f"comparing {len(staged)} partitions", may_lack=may_lack
        )

    async def _promote_all(
        self,
        staged: Sequence[StagingStream],
        hashes: Sequence[list[str]],
        doing: str,
        expected: tuple[SeqRange, ...] = (),
        since: int | None = None,
        *,
        may_lack: bool,
    ) -> bool:
        ends, origin, equal = self.endpoints, Address.parse(self.origin_state.origin).stream, True
        next_place = await retry_transient(
            ends.target,
            partial(staging_sources.fetch_next_sequence, ends.target, self.target_stream),
        )
        if some := [stage for stage in staged if stage.messages]:
            await self._write(
                partial(
                    staging_sources.attach_staging_streams, ends.target, self.target_stream, some
                )
            )
        first = next_place if since is None else min(since, next_place)
        tasks = [
            PromotionScan(
                ends.target_endpoint,
                self.target_stream,
                first,
                one.name,
                one.messages,
                ends.origin_domain_name,
                origin,
                expected,
                one.base_seq,
                one.keeps_sequences,
            )
            for one in staged
        ]
        self.observer.phase(
            f"Promoting {sum(stage.messages for stage in staged):,} messages into {self.origin_state.target} and comparing them"
        )
        told = await self.runner.run_one(
            partial(scan_promotions, tasks),
            f"{self.origin_state.origin} to {self.origin_state.target}: {doing}",
        )
        for stage, said, wanted in zip(staged, told, hashes, strict=True):
            lacks = may_lack and (
                said["reached"] >= stage.messages or await self._has_deleted(first)
            )
            equal &= self._is_equal(stage, said, wanted, may_lack=lacks)
            self._add_result(stage, said)
        return equal

    async def _has_deleted(self, first: int) -> bool:
        """Whether the target has lost messages from a sequence on: then nobody can tell what arrived, and what is missing is looked for."""
        state = (
            await retry_transient(
                self.endpoints.target,
                partial(
                    staging_sources.require_stream_info, self.endpoints.target, self.target_stream
                ),
            )
        )["state"]
        return bool(state["first_seq"] > first or state.get("num_deleted"))

    def _add_result(self, stage: StagingStream, said: dict[str, Any]) -> None:
        self.result.copied += stage.messages
        self.result.bytes += stage.bytes
        self.result.natively += said["natively"]
        self.result.gaps, self.result.gap_messages = said["gaps"], said["gap_messages"]
        self.origin_state.target_last = max(self.origin_state.target_last, said["last"])

    def _is_equal(
        self, stage: StagingStream, said: dict[str, Any], hashes: list[str], *, may_lack: bool
    ) -> bool:
        """Whether all of a stage is there; raises JsplanError where that must be and is not."""
        if said["reached"] < stage.messages and not may_lack:
            raise JsplanError(
                f"{self.origin_state.target} took {said['messages']:,} of {stage.messages:,} messages of staging stream {stage.name} and no more",
                hint="Look at its limits and at the server's log. Nothing is lost: run the backfill again when it takes messages.",
            )
        if said["messages"] < stage.messages and may_lack:
            gone = stage.messages - said["messages"]
            self.observer.warn(
                f"{self.origin_state.target} took {stage.messages:,} messages, and {gone:,} of them are not there any more"
            )
            return False
        if said["twice"] or said["hashes"] != hashes:
            raise self._build_difference_error(stage, said, hashes)
        self.result.verified = True
        return True

    def _build_difference_error(
        self, stage: StagingStream, said: dict[str, Any], hashes: list[str]
    ) -> JsplanError:
        block = next(
            (
                n
                for n, (one, other) in enumerate(zip(said["hashes"], hashes, strict=False))
                if one != other
            ),
            len(said["hashes"]),
        )
        return JsplanError(
            f"what {self.origin_state.target} stored from sequence {said['first']:,} on is not what {self.origin_state.origin} has: "
            f"{said['messages']:,} of {stage.messages:,} messages, {said['twice']:,} of them twice, first difference in block {block:,}",
            hint="Did somebody delete messages there meanwhile? Run the backfill again: it looks for what is missing and copies that.",
        )

    async def seal(self, stage: StagingStream) -> StagingStream:
        """The stage as it is and remains: it takes nothing any more. Raises ApiError where it is gone."""
        found: StagingStream = await self._write(
            partial(staging_streams.seal, self.endpoints.target, stage)
        )
        return found

    async def drop(self, *staged: StagingStream) -> None:
        """Leave nothing of stages. The streams go first: as long as one is there it is known whether it was begun to be brought in."""
        for stage in staged:
            await self._write(partial(staging_streams.remove, self.endpoints.target, stage))
        await self._write(
            partial(
                staging_sources.detach_staging_streams, self.endpoints.target, self.target_stream
            )
        )

    async def _write(self, ask: Callable[[], Any]) -> Any:
        """Ask for something that writes, each time only if the lock is still ours."""

        async def once() -> Any:
            self.may_write(WRITE_SECONDS)
            return await ask()

        return await retry_transient(self.endpoints.target, once)

    @property
    def target_stream(self) -> str:
        """The target's name."""
        return Address.parse(self.origin_state.target).stream
