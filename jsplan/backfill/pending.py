"""The pending ranges of origins: their pinned ranges without messages that the target has.

Messages that the target's own sources copy are not pending either. Nothing is written here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from jsplan.backfill.origin_reader import OriginReader, fetch_time
from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.retry import gather_limited, retry_transient
from jsplan.backfill.seq_arrays import group_into_ranges, subtract_present
from jsplan.backfill.seq_ranges import MAX_SEQ, count_sequences, intersect, subtract
from jsplan.backfill.tasks.origin_task import ExistingMessages, SourceCoverage
from jsplan.backfill.tasks.source_resume import LastSourcedQuery, find_last_sourced
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.tasks.target_scan import OriginQuery, scan_target
from jsplan.planning.backfill.model import OriginState, SeqRange
from jsplan.resources.nested import source_header
from jsplan.topology import Topology

StreamInfo = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PendingRanges:
    """The `spans` to read, without messages that are `existing` or in `coverage`.

    `is_exact`: every existing message is known to come from this stream and not from a deleted one
    of the same name.
    """

    spans: tuple[SeqRange, ...]
    existing: ExistingMessages
    coverage: tuple[SourceCoverage, ...]
    is_exact: bool = True

    @property
    def uncopied(self) -> list[SeqRange]:
        """The sequences that are not in the target: some may be deleted or not match."""
        return subtract_present(self.spans, self.existing.seq) if self.is_exact else [*self.spans]

    @property
    def messages(self) -> int:
        """The maximum of pending messages."""
        return count_sequences(self.uncopied)

    def restrict(self, first: int, last: int) -> PendingRanges:
        """Restrict to the sequences from `first` to `last`, both included."""
        return replace(self, spans=tuple(intersect(self.spans, [SeqRange(first, last)])))


def split_by_budget(
    all_pending: Sequence[PendingRanges], most: int | None
) -> Iterator[list[PendingRanges]]:
    """Split ranges into portions of at most `most` sequences, which are copied one by one."""
    left = list(all_pending)
    while most is not None and sum(pending.messages for pending in left) > most:
        budget = most
        part: list[PendingRanges] = []
        for number, pending in enumerate(left):
            cut = _find_budget_end(pending, budget)
            part.append(pending.restrict(0, cut))
            left[number], budget = (
                pending.restrict(cut + 1, MAX_SEQ),
                max(0, budget - part[-1].messages),
            )
        yield part
    yield left


def _find_budget_end(pending: PendingRanges, most: int) -> int:
    """Return the last sequence of the first `most` sequences."""
    for span in pending.spans:
        if span.size > most:
            return span.first + most - 1
        most -= span.size
    return MAX_SEQ


async def scan_pending(
    scans: Sequence[PendingScan], *, is_reordered: bool = False
) -> list[PendingRanges]:
    """Find the pending ranges of origins with one scan of their target. Raises ApiError.

    `is_reordered`: the target does not have messages in the order of their sequences.
    """
    endpoints, stream = scans[0].endpoints, scans[0].state.target_address.stream
    target = await retry_transient(
        endpoints.target, partial(require_stream_info, endpoints.target, stream)
    )
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


@dataclass(slots=True)
class PendingScan:
    """Find the pending ranges of one origin."""

    state: OriginState
    endpoints: Endpoints
    topology: Topology
    reader: OriginReader

    async def build_query(self, target: StreamInfo) -> OriginQuery:
        """Build the query for the scan of the target."""
        return OriginQuery(
            f"{self.endpoints.origin_domain_name}/{self.state.origin_address.stream}",
            self.list_source_names(target),
            parse_time(self.state.created),
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
        wanted = self._find_wanted(target, existing, is_reordered=is_reordered)
        if not wanted:
            return PendingRanges((), existing, coverage)
        unread = await self.reader.find_unread(wanted, existing)
        return PendingRanges(unread.spans, unread.existing, coverage, unread.is_exact)

    # --- sources of the target --------------------------------------------------------------------

    def list_source_names(self, target: StreamInfo) -> tuple[str, ...]:
        """List the names of the origin in `Nats-Stream-Source`, also of a source that is gone."""
        if not self.reader.has_domain:
            return ()
        sources = [*self._list_sources(target), self._build_source()]
        return tuple(sorted({source_header(source)[0] for source in sources}))

    def _list_sources(self, target: StreamInfo) -> list[dict[str, Any]]:
        """List the sources of the target that copy from the origin."""
        return [one for one in target["config"].get("sources") or [] if self._is_origin(one)]

    def _is_origin(self, source: dict[str, Any]) -> bool:
        api = (source.get("external") or {}).get("api")
        leads_to = self.topology.routes.resolve_prefix(self.state.target_address.domain, api)
        return bool(
            self.reader.has_domain
            and source["name"] == self.state.origin_address.stream
            and leads_to == self.topology.canonicalize(self.state.origin_address).domain
        )

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
        begins later.
        """
        filters = tuple(t["src"] for t in source.get("subject_transforms") or []) or tuple(
            filter(None, [source.get("filter_subject")])
        )
        first = 1
        if source.get("opt_start_seq"):
            first = int(source["opt_start_seq"])
        elif source.get("opt_start_time"):
            first = await self.reader.find_first_seq_at(parse_time(source["opt_start_time"]))
        if (existing.seq[existing.time == 0] < first).any():
            query = LastSourcedQuery(
                self.endpoints.target_endpoint,
                self.state.target_address.stream,
                int(target["state"]["first_seq"]),
                int(target["state"]["last_seq"]),
                source_header(source),
                parse_time(self.state.created),
            )
            last = await asyncio.to_thread(find_last_sourced, query)
            first = min(first, last + 1) if last else first
        return SourceCoverage(first, filters)

    # --- the target -------------------------------------------------------------------------------

    async def _is_restored(self, target: dict[str, Any]) -> bool:
        """Check whether the target was restored from a snapshot, with equal sequences and times."""
        endpoint, stream = self.endpoints.target_endpoint, self.state.target_address.stream
        for seq in {int(target["first_seq"]), min(int(target["last_seq"]), self.state.last)}:
            time = await fetch_time(endpoint, stream, seq)
            if time is not None and time == await self.reader.fetch_time(seq):
                return True
        return False

    def _find_wanted(
        self, target: StreamInfo, existing: ExistingMessages, *, is_reordered: bool
    ) -> list[SeqRange]:
        """Return the pinned range; of a finished origin without expired messages."""
        spans = [self.state.seq_range] if self.state.seq_range.size > 0 else []
        if self.state.status != "done":
            return spans
        return self._drop_expired(spans, target, existing, is_reordered=is_reordered)

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
        there = subtract(spans, self._list_never_copied())
        if int(target["state"]["first_seq"]) <= self.state.target_next:
            return there
        if is_reordered or not len(existing.seq):
            return []
        return intersect(there, [SeqRange(int(existing.seq[0]), self.state.last)])

    def _list_never_copied(self) -> list[SeqRange]:
        """List gaps and skipped messages."""
        gone = np.concatenate(
            [np.arange(first, last + 1, dtype=np.int64) for first, last in self.state.gaps]
            or [np.empty(0, dtype=np.int64)]
        )
        return group_into_ranges(
            np.unique(np.concatenate([np.array(self.state.skipped, dtype=np.int64), gone]))
        )
