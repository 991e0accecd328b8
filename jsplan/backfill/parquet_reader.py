"""Read an origin of a copy from an archive."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct

from jsplan.backfill.parquet.reader import read_sequences
from jsplan.backfill.pending_ranges import PendingRanges
from jsplan.backfill.seq_arrays import group_into_ranges
from jsplan.backfill.tasks.origin_task import ExistingMessages, find_existing

if TYPE_CHECKING:
    from jsplan.backfill.parquet.location import ParquetOrigin
    from jsplan.planning.backfill.model import OriginState, SeqRange


class ParquetReader(Struct):
    """An origin that is one stream of an archive."""

    state: OriginState
    archive: ParquetOrigin

    async def fetch_info(self) -> dict[str, Any]:
        """Return `created` and `state` as STREAM.INFO would have them."""
        return self.archive.stream_info

    async def count_messages(self) -> int:
        """Count the messages of the archive."""
        return int(self.archive.stream_info["state"]["messages"])

    async def find_gone(self) -> list[SeqRange]:
        """Return no range: an archive deletes nothing during a copy."""
        return []

    async def fetch_time(self, seq: int) -> int | None:
        """Return the time of a message (ns), or None."""
        seqs, times = await asyncio.to_thread(read_sequences, self.archive.files)
        place = int(np.searchsorted(seqs, seq))
        return int(times[place]) if place < len(seqs) and seqs[place] == seq else None

    async def find_first_seq_at(self, time: int) -> int:
        """Return the first sequence that was stored at this time (ns) or later."""
        seqs, times = await asyncio.to_thread(read_sequences, self.archive.files)
        later = np.flatnonzero(times >= time)
        return int(seqs[later[0]]) if len(later) else self.state.last + 1

    async def find_unread(
        self, wanted: list[SeqRange], existing: ExistingMessages
    ) -> PendingRanges:
        """Find the archived messages that the target does not have, by sequence and time."""
        return await asyncio.to_thread(self._find_unread, wanted, existing)

    def _find_unread(self, wanted: list[SeqRange], existing: ExistingMessages) -> PendingRanges:
        seqs, times = read_sequences(self.archive.files)
        is_pending = np.zeros(len(seqs), dtype=bool)
        for span in wanted:
            is_pending[
                np.searchsorted(seqs, span.first) : np.searchsorted(seqs, span.last, side="right")
            ] = True
        if len(existing.seq):
            is_pending &= ~find_existing(existing, seqs, times)
        return PendingRanges(tuple(group_into_ranges(seqs[is_pending])), ExistingMessages())
