"""Import one stream of an archive into a stream.

Like a copy: staged, sealed and promoted, with files instead of an origin stream.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.origin_copy import OriginCopy
from jsplan.backfill.parquet.reader import read_sequences
from jsplan.backfill.pending import PendingRanges, PendingScan
from jsplan.backfill.seq_arrays import group_into_ranges
from jsplan.backfill.tasks.copy import CopyTask, ExistingMessages, find_existing

if TYPE_CHECKING:
    from jsplan.backfill.origin_copy import RunContext
    from jsplan.backfill.parquet.location import ParquetOrigin
    from jsplan.backfill.pinning import Endpoints
    from jsplan.backfill.seq_ranges import OriginState, SeqRange
    from jsplan.backfill.tasks.staging_streams import StagingStream
    from jsplan.documents.backfill import OriginResult
    from jsplan.topology import Topology


class ParquetPendingScan(PendingScan):
    """Find the archived messages that a stream does not have, by sequence and time."""

    def __init__(
        self,
        origin_state: OriginState,
        endpoints: Endpoints,
        topology: Topology,
        parquet_origin: ParquetOrigin,
    ) -> None:
        super().__init__(origin_state, endpoints, topology)
        self.parquet_origin = parquet_origin

    async def scan(self) -> PendingRanges:
        """Return the pending ranges. Raises ApiError."""
        known, claims = await self._find_existing()
        wanted = await self._find_wanted(known)
        spans = await asyncio.to_thread(self._select_pending, wanted, known) if wanted else ()
        return PendingRanges(spans, ExistingMessages(), claims)

    def _select_pending(
        self, ranges: list[SeqRange], known: ExistingMessages
    ) -> tuple[SeqRange, ...]:
        seqs, times = read_sequences(self.parquet_origin.files)
        is_pending = np.zeros(len(seqs), dtype=bool)
        for span in ranges:
            is_pending[
                np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")
            ] = True
        if len(known.seq):
            is_pending &= ~find_existing(known, seqs, times)
        return tuple(group_into_ranges(seqs[is_pending]))

    async def count_messages(self) -> int:
        """Count the messages of the archive."""
        return int(self.parquet_origin.stream_info["state"]["messages"])

    async def find_gone(self) -> list[SeqRange]:
        """Return no range: an archive deletes nothing during a copy."""
        return []

    async def _is_restored(self, state: dict[str, Any]) -> bool:
        """Return True if the target was created from a snapshot of the archived stream.

        Then a message has the same sequence and time in both.
        """
        seqs, times = await asyncio.to_thread(read_sequences, self.parquet_origin.files)
        for seq in {int(state["first_seq"]), min(int(state["last_seq"]), self.origin_state.last)}:
            place = int(np.searchsorted(seqs, seq))
            target_time = await self._fetch_time(
                self.endpoints.target_endpoint, self.origin_state.target_address.stream, seq
            )
            if (
                target_time is not None
                and place < len(seqs)
                and (int(seqs[place]), int(times[place])) == (seq, target_time)
            ):
                return True
        return False

    def _is_origin(self, source: dict[str, Any]) -> bool:
        return self.parquet_origin.has_declared_domain and super()._is_origin(source)

    def _build_source(self) -> dict[str, Any]:
        return (
            super()._build_source()
            if self.parquet_origin.has_declared_domain
            else {"name": self.origin_state.origin_address.stream}
        )

    def _find_first_seq_at(self, time: int) -> int:
        seqs, times = read_sequences(self.parquet_origin.files)
        later = np.flatnonzero(times >= time)
        return int(seqs[later[0]]) if len(later) else self.origin_state.last + 1


class ParquetImport(OriginCopy):
    """Copy of one origin from an archive."""

    def __init__(
        self,
        run: RunContext,
        origin_state: OriginState,
        endpoints: Endpoints,
        parquet_origin: ParquetOrigin,
    ) -> None:
        super().__init__(run, origin_state, endpoints)
        self.parquet_origin = parquet_origin
        self.pending_scan = ParquetPendingScan(
            origin_state, endpoints, run.topology, parquet_origin
        )

    async def run(self) -> OriginResult:
        """Promote the pending messages, verify them, and report the gaps of the archive.

        Raises the errors of a copy.
        """
        result = await super().run()
        result.gaps, result.gap_messages = (
            self.parquet_origin.gaps,
            self.parquet_origin.gap_messages,
        )
        if result.copied:
            result.path = f"{result.path}, from {self.origin_state.archive}"
        return result

    async def _fetch_origin_info(self) -> dict[str, Any]:
        return self.parquet_origin.stream_info

    def _build_task(
        self, staging_stream: StagingStream, pending: PendingRanges, target: dict[str, Any]
    ) -> CopyTask:
        return replace(
            super()._build_task(staging_stream, pending, target),
            stream=self.parquet_origin.origin.stream,
            files=self.parquet_origin.files,
        )
