"""One stream out of an archive into a stream: the way of a copy, staged, sealed and brought in, with files in the place of an origin."""

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
    """Finds what of an archive a stream does not have: by sequence and time of each message."""

    def __init__(
        self, leg: OriginState, ends: Endpoints, topology: Topology, held: ParquetOrigin
    ) -> None:
        super().__init__(leg, ends, topology)
        self.parquet_origin = held

    async def scan(self) -> PendingRanges:
        """What is to be copied now. Raises ApiError."""
        known, claims = await self._find_existing()
        meant = await self._find_wanted(known)
        spans = await asyncio.to_thread(self._select_pending, meant, known) if meant else ()
        return PendingRanges(spans, ExistingMessages(), claims)

    def _select_pending(
        self, meant: list[SeqRange], known: ExistingMessages
    ) -> tuple[SeqRange, ...]:
        seqs, times = read_sequences(self.parquet_origin.files)
        wanted = np.zeros(len(seqs), dtype=bool)
        for span in meant:
            wanted[
                np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")
            ] = True
        if len(known.seq):
            wanted &= ~find_existing(known, seqs, times)
        return tuple(group_into_ranges(seqs[wanted]))

    async def count_messages(self) -> int:
        """How many messages the archive has."""
        return int(self.parquet_origin.stream_info["state"]["messages"])

    async def find_gone(self) -> list[SeqRange]:
        """Nothing goes away while it is copied."""
        return []

    async def _is_restored(self, state: dict[str, Any]) -> bool:
        """Whether the target was made from a snapshot of the stream that was archived: a message is at its own place."""
        seqs, times = await asyncio.to_thread(read_sequences, self.parquet_origin.files)
        for seq in {int(state["first_seq"]), min(int(state["last_seq"]), self.origin_state.last)}:
            place = int(np.searchsorted(seqs, seq))
            here = await self._fetch_time(
                self.endpoints.target_endpoint, self.origin_state.target_address.stream, seq
            )
            if (
                here is not None
                and place < len(seqs)
                and (int(seqs[place]), int(times[place])) == (seq, here)
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
    """Carries out one leg out of an archive."""

    def __init__(
        self, work: RunContext, leg: OriginState, ends: Endpoints, held: ParquetOrigin
    ) -> None:
        super().__init__(work, leg, ends)
        self.parquet_origin = held
        self.pending_scan = ParquetPendingScan(leg, ends, work.topology, held)

    async def run(self) -> OriginResult:
        """Bring in what is missing, prove it, and say what the archive itself had no chance to get. Raises what a copy raises."""
        found = await super().run()
        found.gaps, found.gap_messages = self.parquet_origin.gaps, self.parquet_origin.gap_messages
        if found.copied:
            found.path = f"{found.path}, from {self.origin_state.archive}"
        return found

    async def _fetch_origin_info(self) -> dict[str, Any]:
        return self.parquet_origin.stream_info

    def _build_task(
        self, stage: StagingStream, todo: PendingRanges, target: dict[str, Any]
    ) -> CopyTask:
        return replace(
            super()._build_task(stage, todo, target),
            stream=self.parquet_origin.origin.stream,
            files=self.parquet_origin.files,
        )
