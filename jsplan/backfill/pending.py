"""The pending ranges of origins: their pinned ranges without messages that the target has.

Messages that the target's own sources copy are not pending either. Nothing is written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from jsplan.backfill.origin_reader import CopyOrigin, fetch_time
from jsplan.backfill.pending_ranges import PendingRanges
from jsplan.backfill.retry import gather_limited
from jsplan.backfill.seq_ranges import intersect, subtract
from jsplan.backfill.tasks.origin_task import ExistingMessages, SourceCoverage
from jsplan.backfill.tasks.staging_streams import await_stream_info
from jsplan.backfill.tasks.target_scan import (
    OriginQuery,
    find_sourced_range,
    scan_target,
)
from jsplan.comparing.former_streams import Window
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import OriginState, SeqRange, merge_ranges
from jsplan.resources.server_features import ORIGIN_IDENTITY_LEVEL, read_level
from jsplan.resources.source_header import source_name
from jsplan.topology import Topology
from jsplan.units import parse_instant

StreamInfo = dict[str, Any]


async def scan_pending(
    scans: Sequence[PendingScan], *, is_reordered: bool = False
) -> list[PendingRanges]:
    """Find the pending ranges of origins with one scan of their target. Raises ApiError.

    `is_reordered`: the target does not have messages in the order of their sequences.
    """
    endpoints, stream = scans[0].origin.endpoints, scans[0].state.target_address.stream
    target = await await_stream_info(endpoints.target, stream)
    first, last = int(target["state"]["first_seq"]), int(target["state"]["last_seq"])
    existing = [ExistingMessages() for _ in scans]
    if target["state"]["messages"]:
        queries = await gather_limited(scans, lambda scan: scan.build_query(target))
        existing = await asyncio.to_thread(
            scan_target, endpoints.target_endpoint, stream, first, last, queries
        )
    return await gather_limited(
        list(zip(scans, existing, strict=True)),
        lambda pair: pair[0].find_pending(target, pair[1], is_reordered=is_reordered),
    )


class PendingScan(Struct):
    """Find the pending ranges of one origin."""

    origin: CopyOrigin
    topology: Topology

    @property
    def state(self) -> OriginState:
        """The pinned range of the origin."""
        return self.origin.state

    async def build_query(self, target: StreamInfo) -> OriginQuery:
        """Build the query for the scan of the target."""
        return OriginQuery(
            tuple(self.origin.names),
            self.list_source_names(target),
            await self._is_restored(target["state"]),
        )

    async def find_pending(
        self, target: StreamInfo, existing: ExistingMessages, *, is_reordered: bool
    ) -> PendingRanges:
        """Find the pending ranges, given the messages of the origin in the target."""
        sources = self._list_sources(target)
        coverage = tuple(
            await asyncio.gather(
                *(self._build_coverage(source, target, existing) for source in sources)
            )
        )
        wanted = [self.state.seq_range] if self.state.seq_range.size > 0 else []
        if self.state.status == "done":
            wanted = self._drop_expired(wanted, target, existing, is_reordered=is_reordered)
        inside = (existing.seq >= self.state.first) & (existing.seq <= self.state.last)
        found = bool(inside.any())
        if not wanted:
            return PendingRanges((), existing, coverage, found_existing=found)
        unread = await self.origin.reader.find_unread(wanted, existing)
        return replace(unread, coverage=coverage, found_existing=found)

    # --- sources of the target --------------------------------------------------------------------

    def list_source_names(self, target: StreamInfo) -> dict[str, Window]:
        """List the names of the origin in `Nats-Stream-Source`, also of a source that is gone."""
        if not self.origin.has_domain:
            return {}
        sources = [*self._list_sources(target), self._build_source()]
        names = {source_name(source).stream: self.origin.own_window for source in sources}
        return self.origin.former.sources | names

    def _list_sources(self, target: StreamInfo) -> list[dict[str, Any]]:
        """List the sources of the target that copy from the origin."""
        if not self.origin.has_domain:
            return []
        reads, state = self.topology.routes.reads_origin, self.state
        return [
            source
            for source in target["config"].get("sources") or []
            if reads(state.target_address, source, state.origin_address)
        ]

    def _build_source(self) -> dict[str, Any]:
        """Build the source that the target would have for the origin."""
        origin, target = self.state.origin_address, self.state.target_address
        source: dict[str, Any] = {"name": origin.stream}
        if origin.domain != target.domain:
            api = self.topology.routes.find_route(target.domain, origin.domain).api
            source |= {"external": {"api": api}} if api else {}
        return source

    async def _build_coverage(
        self, source: dict[str, Any], target: StreamInfo, existing: ExistingMessages
    ) -> SourceCoverage:
        """Find the messages that a source delivers by itself.

        An earlier source resumes after its last message in the target, even if it says that it
        begins later. One without a first sequence may have begun at the last message of a target
        whose first messages were gone. Raises RefusedError if no message shows that. Before
        nats-server 2.15 a source of a recreated origin waits until its sequences come again.
        """
        filters = tuple(t["src"] for t in source.get("subject_transforms") or []) or tuple(
            filter(None, [source.get("filter_subject")])
        )
        first = 1
        if source.get("opt_start_seq"):
            first = int(source["opt_start_seq"])
        elif source.get("opt_start_time"):
            start = parse_instant(source["opt_start_time"])
            first = await self.origin.reader.find_first_seq_at(start)
        may_begin_late = (
            not source.get("opt_start_seq")
            and int(target["state"]["first_seq"]) > 1
            and self.state.status != "done"
            and self.state.seq_range.size > 0
        )
        if may_begin_late or (existing.seq[existing.time == 0] < first).any():
            state = target["state"]
            sourced = await asyncio.to_thread(
                find_sourced_range,
                self.origin.endpoints.target_endpoint,
                self.state.target_address.stream,
                SeqRange(int(state["first_seq"]), int(state["last_seq"])),
                source_name(source),
                self.origin.own_window[0],
            )
            if may_begin_late:
                first = max(first, self._require_sourced(sourced).first)
            elif sourced is not None:
                first = min(first, sourced.last + 1)
        if existing.former:
            info = await self.origin.endpoints.target.request("INFO")
            if read_level(info) < ORIGIN_IDENTITY_LEVEL:
                first = max(first, existing.former + 1)
        return SourceCoverage(first, filters)

    def _require_sourced(self, sourced: SeqRange | None) -> SeqRange:
        if sourced is None:
            raise RefusedError(
                f"{self.state.target} has a source of {self.state.origin} without opt_start_seq, "
                "and its own first messages are gone. A server begins such a source at the last "
                "message of the target, so it is not known what the source will deliver",
                hint="Give the source opt_start_seq, the first sequence that it is to deliver. The "
                "backfill copies what is before it.",
            )
        return sourced

    # --- the target -------------------------------------------------------------------------------

    async def _is_restored(self, target: dict[str, Any]) -> bool:
        """Check whether the target was restored from a snapshot, with equal sequences and times.

        An origin that never had a message ends at 0.
        """
        endpoint, stream = self.origin.endpoints.target_endpoint, self.state.target_address.stream
        for seq in {int(target["first_seq"]), min(int(target["last_seq"]), self.state.last)} - {0}:
            time = await fetch_time(endpoint, stream, seq)
            if time is not None and time == await self.origin.reader.fetch_time(seq):
                return True
        return False

    def _drop_expired(
        self,
        spans: list[SeqRange],
        target: StreamInfo,
        existing: ExistingMessages,
        *,
        is_reordered: bool,
    ) -> list[SeqRange]:
        """Drop spans that were copied and have expired at the target.

        With a limit per subject, and in another order, deleted messages look like pending ones:
        drop all.
        """
        if target["config"].get("max_msgs_per_subject", -1) > 0:
            return []
        never_copied = merge_ranges(
            [
                *(SeqRange(first, last) for first, last in self.state.gaps),
                *(SeqRange(seq, seq) for seq in self.state.skipped),
            ]
        )
        there = subtract(spans, never_copied)
        if int(target["state"]["first_seq"]) <= self.state.target_next:
            return there
        if is_reordered or not len(existing.seq):
            return []
        return intersect(there, [SeqRange(int(existing.seq[0]), self.state.last)])
