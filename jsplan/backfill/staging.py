"""The staging streams of a copy: create, seal, promote, recover and drop them.

A staging stream holds a prefix of its partition. Only sealed ones are promoted, and those of
earlier attempts before new ones are written. So the target, too, holds a prefix of each partition,
and its order survives a crash.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

from msgspec import Struct

from jsplan.backfill.protocol.stream_info import find_first_seq_at
from jsplan.backfill.retry import retry_transient
from jsplan.backfill.run_context import WRITE_SECONDS, RunContext
from jsplan.backfill.tasks import staging_streams
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.staging_streams import StagingStream
from jsplan.backfill.tasks.target_scan import (
    Arrived,
    StagedMessages,
    find_duplicate,
    read_staged_messages,
    scan_promotions,
)
from jsplan.errors import JsplanError
from jsplan.jetstream import DomainApi
from jsplan.units import SECOND, parse_instant

#: The largest difference between the clocks of the servers of one domain.
MAX_CLOCK_SKEW: Final = 60 * SECOND
#: Checks that a sealed staging stream of an earlier attempt lacks no message of its prefix.
PrefixCheck = Callable[[StagingStream, StagedMessages], Awaitable[bool]]
Recovered = tuple[StagingStream, StagedMessages]


class Staging(Struct):
    """The staging streams of one copy, in the domain of its target.

    `address` is the target, `origins` are the addresses of the origins; the first one labels the
    staging streams. Only those with this `fingerprint` are resumed.
    """

    context: RunContext
    api: DomainApi
    endpoint: Endpoint
    address: str
    stream: str
    origins: Sequence[str]
    fingerprint: str

    async def create(self, count: int) -> list[StagingStream]:
        """Create staging streams with the replicas and placement of the target."""
        config = (await self.fetch_target_info())["config"]
        created = []
        for _ in range(count):
            self.context.may_write(WRITE_SECONDS)
            created.append(
                await staging_streams.create(
                    self.api, self.context.entry_id, self.origins[0], self.fingerprint, config
                )
            )
        return created

    async def require_exclusive(self, staging: StagingStream) -> None:
        """Raise RefusedError if a stream in any domain takes the subjects of a staging stream."""
        require = staging_streams.require_exclusive_subject
        await asyncio.gather(*(require(api, staging) for api in self.context.apis.values()))

    async def count_messages(self, staged: Sequence[StagingStream]) -> int:
        """Count the messages that the staging streams have now. Raises ApiError."""
        return sum([(await staging_streams.refresh(self.api, one)).messages for one in staged])

    async def seal(self, staging: StagingStream) -> StagingStream:
        """Seal a staging stream: it takes no more messages. Raises ApiError if it is gone."""
        found: StagingStream = await self._write(partial(staging_streams.seal, self.api, staging))
        return found

    async def drop(self, *staged: StagingStream) -> None:
        """Delete staging streams, then detach them: a source shows that promotion began."""
        for staging in staged:
            await self._write(partial(staging_streams.remove, self.api, staging))
        await self._write(partial(staging_streams.detach_staging_streams, self.api, self.stream))

    # --- promotion --------------------------------------------------------------------------------

    async def promote(
        self,
        staged: Sequence[StagingStream],
        hashes: Sequence[list[str]],
        *,
        since: int | None = None,
        may_lack: bool = False,
    ) -> bool:
        """Promote sealed staging streams together. Return True if all messages are in the target.

        One update attaches all, because the server scans the whole target for each new source.
        `since`: some messages may be in the target from that sequence on. `may_lack`: the target
        may have deleted some. If it keeps only its newest messages, it gets one staging stream
        after the other, since each may delete what is not compared yet. Raises ApiError, and
        JsplanError if the target lacks messages.
        """
        nonempty = [pair for pair in zip(staged, hashes, strict=True) if pair[0].messages]
        config = (await self.fetch_target_info())["config"]
        apart = may_lack and any(
            int(config.get(name, -1)) > 0 for name in ("max_msgs", "max_bytes")
        )
        groups = [[each] for each in nonempty] if apart else [nonempty]
        promote = partial(self._promote_together, since=since, may_lack=may_lack)
        return all([await promote(group) for group in groups if group])

    async def _promote_together(
        self,
        nonempty: Sequence[tuple[StagingStream, list[str]]],
        since: int | None,
        *,
        may_lack: bool,
    ) -> bool:
        staged = [staging for staging, _ in nonempty]
        first = int((await self.fetch_target_info())["state"]["last_seq"]) + 1
        await self._write(
            lambda: staging_streams.attach_staging_streams(self.api, self.stream, staged)
        )
        first = first if since is None else min(since, first)
        count = sum(staging.messages for staging in staged)
        self.context.observer.phase(
            f"Promoting {count:,} messages into {self.address} and comparing them"
        )
        wanted = [(staging.name, staging.messages) for staging in staged]
        scans: list[Arrived] = await self.context.runner.run_one(
            partial(scan_promotions, self.endpoint, self.stream, first, wanted),
            f"{self.origins[0]} to {self.address}: comparing",
        )
        equal = True
        for (staging, blocks), scan in zip(nonempty, scans, strict=True):
            lacking = may_lack and (
                scan.reached >= staging.messages or await self._has_deleted(staging, scan, first)
            )
            equal &= self._is_equal(staging, scan, blocks, may_lack=lacking)
        return equal

    async def _has_deleted(self, staging: StagingStream, scan: Arrived, first: int) -> bool:
        """Check whether the target got all of a staging stream, and deleted some of it.

        It has deleted messages from the sequence `first` on.
        """
        info = await self.fetch_target_info()
        deleted = info["state"]["first_seq"] > first or info["state"].get("num_deleted")
        return bool(deleted) and staging_streams.has_delivered(info, staging, scan.reached)

    def _is_equal(
        self, staging: StagingStream, scan: Arrived, hashes: list[str], *, may_lack: bool
    ) -> bool:
        """Check that the target has all messages. Raises JsplanError if it must have them."""
        if scan.reached < staging.messages and not may_lack:
            raise JsplanError(
                f"{self.address} took only {scan.messages:,} of {staging.messages:,} messages "
                f"of staging stream {staging.name}",
                hint="Check its limits and the server's log. No message is lost: run the backfill "
                "again when the target takes messages.",
            )
        if scan.messages < staging.messages and may_lack:
            gone = staging.messages - scan.messages
            self.context.observer.warn(
                f"{self.address} took {staging.messages:,} messages, and {gone:,} of them are not "
                "there any more"
            )
            return False
        if scan.twice or scan.hashes != hashes:
            raise self._build_difference_error(staging, scan, hashes)
        return True

    def _build_difference_error(
        self, staging: StagingStream, scan: Arrived, hashes: list[str]
    ) -> JsplanError:
        pairs = zip(scan.hashes, hashes, strict=False)
        differs = (number for number, pair in enumerate(pairs) if pair[0] != pair[1])
        block = next(differs, len(scan.hashes))
        return JsplanError(
            f"{self.address} differs from {self.origins[0]} from sequence {scan.first:,} on: "
            f"{scan.messages:,} of {staging.messages:,} messages, {scan.twice:,} of them "
            f"twice, first difference in block {block:,}",
            hint="Messages may have been deleted there meanwhile. Run the backfill again: it "
            "copies the missing messages.",
        )

    # --- recovery ---------------------------------------------------------------------------------

    async def recover(self, is_prefix: PrefixCheck) -> list[Recovered]:
        """Promote the staging streams of earlier attempts, and drop them all.

        If the target has one as a source, its promotion had begun. Any other is dropped unpromoted
        if it is of an earlier text of the entry or of a deleted origin, if it is no prefix, or if
        two have the same message. Return the promoted ones, with their content. Raises
        LeaseLostError, JsplanError and ApiError.
        """
        self.context.may_write(WRITE_SECONDS)
        found = await retry_transient(
            self.api, partial(staging_streams.find, self.api, self.context.entry_id)
        )
        sealed = [
            await self.seal(staging) for staging in found if not self._is_of_other_copy(staging)
        ]
        recovered: list[Recovered] = []
        if sealed:
            info = await self.fetch_target_info()
            attached = staging_streams.list_staging_sources(info["config"])
            recovered = await self._select_promotable(sealed, attached, is_prefix)
        if recovered:
            count = sum(staging.messages for staging, _ in recovered)
            self.context.observer.phase(f"Resuming with {count:,} messages of an earlier attempt")
            await self.promote(
                [staging for staging, _ in recovered],
                [content.hashes for _, content in recovered],
                since=await asyncio.to_thread(self._find_start, recovered[0][0]),
                may_lack=True,
            )
        await self.drop(*sealed)
        return recovered

    def _is_of_other_copy(self, staging: StagingStream) -> bool:
        """Check whether another copy of this run recovers a staging stream."""
        return staging.origin not in self.origins and staging.origin in {
            str(side) for side in self.context.entry.origins
        }

    async def _select_promotable(
        self, sealed: Sequence[StagingStream], attached: Sequence[str], is_prefix: PrefixCheck
    ) -> list[Recovered]:
        """Select the staging streams to promote. All checks come before the first one is attached.

        What was attached was checked before.
        """
        selected: list[Recovered] = []
        for staging in sealed:
            is_attached = staging.name in attached
            if not staging.messages or not (is_attached or staging.fingerprint == self.fingerprint):
                continue
            content = await asyncio.to_thread(
                read_staged_messages, self.endpoint, staging.name, staging.messages
            )
            if is_attached or await is_prefix(staging, content):
                selected.append((staging, content))
            else:
                self.context.observer.warn(
                    f"a message was lost on its way to staging stream {staging.name}; "
                    "the staging stream is deleted, and copied again"
                )
        if any(staging.name in attached for staging, _ in selected):
            return selected
        if find_duplicate([content.seqs for _, content in selected]) is not None:
            self.context.observer.warn(
                "The staging streams of an earlier attempt have duplicate messages. "
                "They are dropped"
            )
            return []
        return selected

    def _find_start(self, oldest: StagingStream) -> int:
        """Find the first sequence of the target that may come from staging streams, by age."""
        since = parse_instant(oldest.created) - MAX_CLOCK_SKEW
        with contextlib.closing(self.endpoint.open()) as connection:
            return find_first_seq_at(connection, self.endpoint.api_prefix, self.stream, since)

    # --- requests ---------------------------------------------------------------------------------

    async def fetch_target_info(self) -> dict[str, Any]:
        """Return STREAM.INFO of the target. Raises ApiError if it does not exist."""
        return await staging_streams.await_stream_info(self.api, self.stream)

    async def _write(self, request: Callable[[], Any]) -> Any:
        return await self.context.write(self.api, request)
