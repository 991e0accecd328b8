"""The pending ranges of an origin: the pinned range without messages that the target has.

Messages that the target's own sources copy are not pending either. Nothing is written here.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from jsplan.backfill.pinning import Endpoints
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import count_pending, find_first_seq_at, parse_time
from jsplan.backfill.seq_arrays import group_into_ranges, subtract_present
from jsplan.backfill.seq_ranges import OriginState, SeqRange, count_sequences, intersect, subtract
from jsplan.backfill.tasks.copy import MAX_READ_RANGES, ExistingMessages, SourceCoverage
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.source_resume import LastSourcedQuery, find_last_sourced
from jsplan.backfill.tasks.staging_sources import require_stream_info
from jsplan.backfill.tasks.target_scan import TargetScan, scan_target
from jsplan.errors import ServerRefusedError
from jsplan.jetstream.api import STREAM_NOT_FOUND
from jsplan.resources.nested import source_header
from jsplan.topology import Topology

#: Shorter runs of existing messages are read again and dropped one by one. The second number is for
#: the longest runs, which cost no more than a range each.
MIN_SKIPPED_RUN, MIN_SKIPPED_LONGEST_RUN = 10_000, 100
#: Limit for a list of deleted sequences: a larger one may exceed the payload limit of a link.
MAX_DELETED_DETAILS: Final = 50_000
#: Attempts to find a message that both the target and the origin have.
MAX_TRIES: Final = 20


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
    def messages(self) -> int:
        """The maximum of pending messages: some sequences may be deleted or not match."""
        return count_sequences(
            subtract_present(self.spans, self.existing.seq) if self.is_exact else self.spans
        )

    def restrict(self, first: int, last: int) -> PendingRanges:
        """Restrict to the sequences from `first` to `last`, both included."""
        return replace(self, spans=tuple(intersect(self.spans, [SeqRange(first, last)])))


def find_skippable_runs(known: ExistingMessages) -> list[SeqRange]:
    """Find long runs of existing messages, which are not read again.

    Their number is limited to the ranges that one task reads, unless all are long.
    """
    largest = sorted(group_into_ranges(known.seq), key=lambda run: -run.size)
    worth = (
        run
        for n, run in enumerate(largest)
        if run.size >= (MIN_SKIPPED_LONGEST_RUN if n < MAX_READ_RANGES - 1 else MIN_SKIPPED_RUN)
    )
    return sorted(worth)


@dataclass(slots=True)
class PendingScan:
    """Finds the pending ranges of one origin."""

    origin_state: OriginState
    endpoints: Endpoints
    topology: Topology

    async def scan(self) -> PendingRanges:
        """Find the pending ranges. Raises ApiError."""
        known, claims = await self._find_existing()
        spans = await self._find_wanted(known)
        if not spans:
            return PendingRanges((), known, claims)
        if not await self._is_same_origin(known):
            return PendingRanges(tuple(spans), known, claims, is_exact=False)
        return PendingRanges(
            tuple(subtract(spans, find_skippable_runs(known)))
            if subtract_present(spans, known.seq)
            else (),
            known,
            claims,
        )

    async def count_messages(self) -> int:
        """Count the messages of the range at the origin. Raises ApiError."""
        return await asyncio.to_thread(self._count_messages)

    def _count_messages(self) -> int:
        endpoint, name = self.endpoints.source_endpoint, self.origin_state.origin_address.stream
        connection = endpoint.open()
        try:
            first, after = (
                count_pending(
                    connection, endpoint.api_prefix, name, seq, tuple(self.origin_state.filters)
                )
                for seq in (self.origin_state.first, self.origin_state.last + 1)
            )
        finally:
            connection.close()
        return first - after

    async def _find_existing(self) -> tuple[ExistingMessages, tuple[SourceCoverage, ...]]:
        """Find the messages that the target has, and those that its own sources will copy."""
        info = await require_stream_info(
            self.endpoints.target, self.origin_state.target_address.stream
        )
        sources = [s for s in info["config"].get("sources") or [] if self._is_origin(s)]
        state = info["state"]
        claims = tuple(await asyncio.gather(*(self._build_coverage(source) for source in sources)))
        if not state["messages"]:
            return ExistingMessages(), claims
        names = {source_header(source)[0] for source in [*sources, self._build_source()]}
        first, last, since = (
            int(state["first_seq"]),
            int(state["last_seq"]),
            parse_time(self.origin_state.created),
        )
        stream, origin = (
            self.origin_state.target_address.stream,
            self.origin_state.origin_address.stream,
        )
        task = TargetScan(
            self.endpoints.target_endpoint,
            stream,
            first,
            last,
            self.endpoints.origin_domain_name,
            origin,
            tuple(sorted(names)),
            since,
            await self._is_restored(state),
        )
        known = await asyncio.to_thread(scan_target, task)
        queries = [
            LastSourcedQuery(
                self.endpoints.target_endpoint, stream, first, last, source_header(source), since
            )
            for source in sources
        ]
        resumed = [
            self._resume_coverage(claim, known, query)
            for claim, query in zip(claims, queries, strict=True)
        ]
        return known, tuple(await asyncio.gather(*resumed))

    @staticmethod
    async def _resume_coverage(
        claim: SourceCoverage, known: ExistingMessages, source: LastSourcedQuery
    ) -> SourceCoverage:
        """Correct the start of an older source: it resumes after its last message in the target."""
        if not (known.seq[known.time == 0] < claim.first).any():
            return claim
        last = await asyncio.to_thread(find_last_sourced, source)
        return replace(claim, first=min(claim.first, last + 1)) if last else claim

    async def _is_restored(self, state: dict[str, Any]) -> bool:
        """Check whether the target was restored from a snapshot, with equal sequences and times."""
        for seq in {int(state["first_seq"]), min(int(state["last_seq"]), self.origin_state.last)}:
            here = await self._fetch_time(
                self.endpoints.target_endpoint, self.origin_state.target_address.stream, seq
            )
            if here is not None and here == await self._fetch_time(
                self.endpoints.source_endpoint, self.origin_state.origin_address.stream, seq
            ):
                return True
        return False

    async def _fetch_time(self, endpoint: Endpoint, stream: str, seq: int) -> int | None:
        """Read the time of a message, or None, without its payload."""
        found = await self._fetch_first(endpoint, stream, seq, seq)
        return found[1] if found is not None else None

    async def _fetch_first(
        self, endpoint: Endpoint, stream: str, seq: int, last: int
    ) -> tuple[int, int] | None:
        """Read sequence and time of the first message from `seq` on; None if there is none."""

        def first() -> tuple[int, int] | None:
            what = ReadRequest(endpoint.api_prefix, stream, seq, last, headers_only=True)
            with contextlib.closing(read(endpoint.open, what)) as batches:
                return next(
                    ((rows["seq"][0].as_py(), rows["time"][0].as_py()) for rows in batches), None
                )

        try:
            return await asyncio.to_thread(first)
        except ServerRefusedError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise

    def _is_origin(self, source: dict[str, Any]) -> bool:
        api = (source.get("external") or {}).get("api")
        leads_to = self.topology.routes.resolve_prefix(self.origin_state.target_address.domain, api)
        return bool(
            source["name"] == self.origin_state.origin_address.stream
            and leads_to == self.topology.canonicalize(self.origin_state.origin_address).domain
        )

    def _build_source(self) -> dict[str, Any]:
        """Build the source that the target would have for the origin."""
        endpoint = (
            self.topology.routes.find_route(
                self.origin_state.target_address.domain, self.origin_state.origin_address.domain
            )
            if self.origin_state.origin_address.domain != self.origin_state.target_address.domain
            else None
        )
        api = endpoint.api if endpoint is not None else None
        return {"name": self.origin_state.origin_address.stream} | (
            {"external": {"api": api}} if api else {}
        )

    async def _build_coverage(self, source: dict[str, Any]) -> SourceCoverage:
        filters = tuple(t["src"] for t in source.get("subject_transforms") or []) or tuple(
            filter(None, [source.get("filter_subject")])
        )
        if source.get("opt_start_seq"):
            return SourceCoverage(int(source["opt_start_seq"]), filters)
        if source.get("opt_start_time"):
            return SourceCoverage(
                await asyncio.to_thread(
                    self._find_first_seq_at, parse_time(source["opt_start_time"])
                ),
                filters,
            )
        return SourceCoverage(1, filters)

    def _find_first_seq_at(self, time: int) -> int:
        connection = self.endpoints.source_endpoint.open()
        try:
            return find_first_seq_at(
                connection,
                self.endpoints.source_endpoint.api_prefix,
                self.origin_state.origin_address.stream,
                time,
            )
        finally:
            connection.close()

    async def _find_wanted(self, known: ExistingMessages) -> list[SeqRange]:
        """Return the pinned range; of a finished origin without expired messages."""
        spans = (
            [self.origin_state.seq_range]
            if self.origin_state.first <= self.origin_state.last
            else []
        )
        return (
            await self._drop_expired(spans, known) if self.origin_state.status == "done" else spans
        )

    async def _drop_expired(self, spans: list[SeqRange], known: ExistingMessages) -> list[SeqRange]:
        """Drop spans that were copied and have expired at the target.

        With a limit per subject, deleted messages look like pending ones: drop all.
        """
        info = await require_stream_info(
            self.endpoints.target, self.origin_state.target_address.stream
        )
        if info["config"].get("max_msgs_per_subject", -1) > 0:
            return []
        there = subtract(spans, self._list_never_copied())
        if int(info["state"]["first_seq"]) <= self.origin_state.target_next:
            return there
        return (
            intersect(there, [SeqRange(int(known.seq[0]), self.origin_state.last)])
            if len(known.seq)
            else []
        )

    def _list_never_copied(self) -> list[SeqRange]:
        """List gaps and skipped messages."""
        gone = np.concatenate(
            [np.arange(first, last + 1, dtype=np.int64) for first, last in self.origin_state.gaps]
            or [np.empty(0, dtype=np.int64)]
        )
        return group_into_ranges(
            np.unique(np.concatenate([np.array(self.origin_state.skipped, dtype=np.int64), gone]))
        )

    async def _is_same_origin(self, known: ExistingMessages) -> bool:
        """Check that all existing messages come from this origin, not from a deleted stream.

        Times grow with sequences in both, and every message of the deleted stream is older.
        """
        times = known.time[known.time > 0]
        if not len(times):
            return True
        if (np.diff(known.seq) == 0).any() or (np.diff(times) < 0).any():
            return False
        return await self._has_same_message(known)

    async def _has_same_message(self, known: ExistingMessages) -> bool:
        """Compare the first existing message that the origin still has."""
        seqs = known.seq[known.time > 0]
        place, tries = 0, 0
        while place < len(seqs) and tries < MAX_TRIES:
            tries += 1
            endpoint, stream = (
                self.endpoints.source_endpoint,
                self.origin_state.origin_address.stream,
            )
            found = await self._fetch_first(endpoint, stream, int(seqs[place]), int(seqs[-1]))
            if found is None:
                return True  # the origin has none of them, so none can be copied twice
            place = int(np.searchsorted(seqs, found[0]))
            if place < len(seqs) and seqs[place] == found[0]:
                return bool(found[1] == known.time[known.time > 0][place])
        return place >= len(seqs)

    async def find_gone(self) -> list[SeqRange]:
        """Find sequences that are deleted at the origin."""
        info = await require_stream_info(
            self.endpoints.origin, self.origin_state.origin_address.stream
        )
        state = info["state"]
        gone = [SeqRange(1, int(state["first_seq"]) - 1)] if state["first_seq"] > 1 else []
        deleted = int(state.get("num_deleted") or 0)
        if deleted > MAX_DELETED_DETAILS:
            return subtract(
                [SeqRange(1, int(state["last_seq"]))], await asyncio.to_thread(self._list_present)
            )
        if deleted:
            detailed = await self.endpoints.origin.request(
                f"STREAM.INFO.{self.origin_state.origin_address.stream}", {"deleted_details": True}
            )
            gone += group_into_ranges(
                np.array(sorted(detailed["state"].get("deleted") or []), dtype=np.int64)
            )
        return gone

    def _list_present(self) -> list[SeqRange]:
        endpoint, last = self.endpoints.source_endpoint, self.origin_state.last
        what = ReadRequest(
            endpoint.api_prefix,
            self.origin_state.origin_address.stream,
            self.origin_state.first,
            last,
            headers_only=True,
        )
        return group_into_ranges(
            np.concatenate(
                [rows["seq"].to_numpy() for rows in read(endpoint.open, what)]
                or [np.empty(0, dtype=np.int64)]
            )
        )
