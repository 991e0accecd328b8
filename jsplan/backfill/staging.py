"""The promotion of staging streams into the target, also of those of earlier attempts."""

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
#: Checks that the tail of a sealed staging stream lacks no message.
CompletenessCheck = Callable[[StagingStream, UnprovenTail], Awaitable[bool]]
#: The longest time of a write in seconds: the lock must last as long.
WRITE_SECONDS: Final = 30.0
#: The largest difference between the clocks of the servers of one domain.
MAX_CLOCK_SKEW: Final = 60 * SECOND


async def _has_no_tail(_stage: StagingStream, tail: UnprovenTail) -> bool:
    return not len(tail.seqs)


@dataclass(slots=True)
class Promotion:
    """The promotion of the staging streams of one origin.

    `entry_id` names the entry and its workspace on the servers. Only staging streams with this
    `fingerprint` are resumed.
    """

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
        """Promote the staging streams of earlier attempts, then remove them.

        If the target has one as a source, its promotion had begun. Any other is dropped if it is of
        an earlier text of the entry or of a deleted origin. Raises LeaseLostError, JsplanError and
        ApiError.
        """
        self.may_write(WRITE_SECONDS)
        for staging in await retry_transient(
            self.endpoints.target,
            partial(staging_streams.find, self.endpoints.target, self.entry_id),
        ):
            if staging.origin == self.origin_state.origin:
                await self._recover_stream(staging)
        await self._write(
            partial(
                staging_sources.detach_staging_streams, self.endpoints.target, self.target_stream
            )
        )

    async def _recover_stream(self, staging: StagingStream) -> None:
        sealed = await self.seal(staging)
        info = await retry_transient(
            self.endpoints.target,
            partial(staging_sources.require_stream_info, self.endpoints.target, self.target_stream),
        )
        promoting = staging.name in staging_sources.list_staging_sources(info["config"])
        if sealed.messages and (promoting or staging.fingerprint == self.fingerprint):
            self.observer.phase(f"Resuming with {sealed.messages:,} messages of an earlier attempt")
            origin = Address.parse(self.origin_state.origin).stream
            hashes, tail = await asyncio.to_thread(
                read_staging_stream,
                self.endpoints.target_endpoint,
                staging.name,
                sealed.messages,
                self.endpoints.origin_domain_name,
                origin,
            )
            if promoting or await self.is_complete(sealed, tail):  # it was checked before
                await self.promote(
                    sealed,
                    hashes,
                    since=await asyncio.to_thread(self._find_start, staging),
                    may_lack=True,
                )
            else:
                self.observer.warn(
                    f"a message was lost on its way to staging stream {staging.name}; "
                    "the staging stream is deleted, and copied again"
                )
        await self.drop(sealed)

    def _find_start(self, staging: StagingStream) -> int:
        """Find the first sequence of the target that may come from a staging stream, by its age."""
        endpoint = self.endpoints.target_endpoint
        connection = endpoint.open()
        try:
            return find_first_seq_at(
                connection,
                endpoint.api_prefix,
                self.target_stream,
                parse_time(staging.created) - MAX_CLOCK_SKEW,
            )
        finally:
            connection.close()

    async def promote(
        self,
        staging: StagingStream,
        hashes: list[str],
        *,
        expected: tuple[SeqRange, ...] = (),
        since: int | None = None,
        may_lack: bool = False,
    ) -> None:
        """Promote a sealed staging stream and verify it.

        `since`: some messages may be in the target from that sequence on. `may_lack`: the target
        may have deleted some. Raises ApiError, and JsplanError if the target lacks messages.
        """
        await self._promote_all(
            [staging], [hashes], "comparing", expected, since, may_lack=may_lack
        )

    async def promote_partitions(
        self, staged: Sequence[StagingStream], hashes: Sequence[list[str]], *, may_lack: bool
    ) -> bool:
        """Promote several sealed staging streams at once. Return True if all messages are there.

        For each new source the server scans the whole target, so one update attaches all.
        """
        return await self._promote_all(
            staged, hashes, f"comparing {len(staged)} partitions", may_lack=may_lack
        )

    async def _promote_all(
        self,
        staged: Sequence[StagingStream],
        hashes: Sequence[list[str]],
        action: str,
        expected: tuple[SeqRange, ...] = (),
        since: int | None = None,
        *,
        may_lack: bool,
    ) -> bool:
        endpoints, origin, equal = (
            self.endpoints,
            Address.parse(self.origin_state.origin).stream,
            True,
        )
        next_seq = await retry_transient(
            endpoints.target,
            partial(staging_sources.fetch_next_sequence, endpoints.target, self.target_stream),
        )
        if nonempty := [staging for staging in staged if staging.messages]:
            await self._write(
                partial(
                    staging_sources.attach_staging_streams,
                    endpoints.target,
                    self.target_stream,
                    nonempty,
                )
            )
        first = next_seq if since is None else min(since, next_seq)
        tasks = [
            PromotionScan(
                endpoints.target_endpoint,
                self.target_stream,
                first,
                staging.name,
                staging.messages,
                endpoints.origin_domain_name,
                origin,
                expected,
            )
            for staging in staged
        ]
        self.observer.phase(
            f"Promoting {sum(staging.messages for staging in staged):,} messages into "
            f"{self.origin_state.target} and comparing them"
        )
        scans = await self.runner.run_one(
            partial(scan_promotions, tasks),
            f"{self.origin_state.origin} to {self.origin_state.target}: {action}",
        )
        for staging, scan, expected_hashes in zip(staged, scans, hashes, strict=True):
            lacking = may_lack and (
                scan["reached"] >= staging.messages or await self._has_deleted(first)
            )
            equal &= self._is_equal(staging, scan, expected_hashes, may_lack=lacking)
            self._add_result(staging, scan)
        return equal

    async def _has_deleted(self, first: int) -> bool:
        """Check whether the target has deleted messages from a sequence on."""
        state = (
            await retry_transient(
                self.endpoints.target,
                partial(
                    staging_sources.require_stream_info, self.endpoints.target, self.target_stream
                ),
            )
        )["state"]
        return bool(state["first_seq"] > first or state.get("num_deleted"))

    def _add_result(self, staging: StagingStream, scan: dict[str, Any]) -> None:
        self.result.copied += staging.messages
        self.result.bytes += staging.bytes
        self.result.gaps, self.result.gap_messages = scan["gaps"], scan["gap_messages"]
        self.origin_state.target_last = max(self.origin_state.target_last, scan["last"])

    def _is_equal(
        self, staging: StagingStream, scan: dict[str, Any], hashes: list[str], *, may_lack: bool
    ) -> bool:
        """Check that the target has all messages. Raises JsplanError if it must have them."""
        if scan["reached"] < staging.messages and not may_lack:
            raise JsplanError(
                f"{self.origin_state.target} took only {scan['messages']:,} of "
                f"{staging.messages:,} messages of staging stream {staging.name}",
                hint="Check its limits and the server's log. No message is lost: run the backfill "
                "again when the target takes messages.",
            )
        if scan["messages"] < staging.messages and may_lack:
            gone = staging.messages - scan["messages"]
            self.observer.warn(
                f"{self.origin_state.target} took {staging.messages:,} messages, and {gone:,} of "
                "them are not there any more"
            )
            return False
        if scan["twice"] or scan["hashes"] != hashes:
            raise self._build_difference_error(staging, scan, hashes)
        self.result.verified = True
        return True

    def _build_difference_error(
        self, staging: StagingStream, scan: dict[str, Any], hashes: list[str]
    ) -> JsplanError:
        block = next(
            (
                n
                for n, (actual, expected) in enumerate(zip(scan["hashes"], hashes, strict=False))
                if actual != expected
            ),
            len(scan["hashes"]),
        )
        return JsplanError(
            f"{self.origin_state.target} differs from {self.origin_state.origin} from sequence "
            f"{scan['first']:,} on: {scan['messages']:,} of {staging.messages:,} messages, "
            f"{scan['twice']:,} of them twice, first difference in block {block:,}",
            hint="Messages may have been deleted there meanwhile. Run the backfill again: it "
            "copies the missing messages.",
        )

    async def seal(self, staging: StagingStream) -> StagingStream:
        """Seal a staging stream: it takes no more messages. Raises ApiError if it is gone."""
        found: StagingStream = await self._write(
            partial(staging_streams.seal, self.endpoints.target, staging)
        )
        return found

    async def drop(self, *staged: StagingStream) -> None:
        """Delete staging streams, then detach them: a source shows that promotion began."""
        for staging in staged:
            await self._write(partial(staging_streams.remove, self.endpoints.target, staging))
        await self._write(
            partial(
                staging_sources.detach_staging_streams, self.endpoints.target, self.target_stream
            )
        )

    async def _write(self, request: Callable[[], Any]) -> Any:
        """Send a write, and check before each attempt that the lock is still held."""

        async def guarded() -> Any:
            self.may_write(WRITE_SECONDS)
            return await request()

        return await retry_transient(self.endpoints.target, guarded)

    @property
    def target_stream(self) -> str:
        """The name of the target stream."""
        return Address.parse(self.origin_state.target).stream
