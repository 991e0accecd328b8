"""Writes a piece of an archive of what SQL or a function made of messages. Where the rows come from is left to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.parquet.writer import ChunkWriter, ExportChunk
from jsplan.backfill.tasks.partition_writer import build_duplicate_error
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from jsplan.backfill.tasks.partitioning import PartitionPlan


class TransformedChunkWriter:
    """The writer of one piece of a job, as `LaneWriter` is of a lane: rows come by sequence, and what comes twice is refused."""

    def __init__(self, job: PartitionPlan, pieces: Sequence[ExportChunk], number: int) -> None:
        self._plan = job
        self._number = number
        self._chunk = pieces[number]
        self._writer = ChunkWriter(self._chunk)
        self._last = self._chunk.span.first - 1

    def write(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows, in the columns of `MESSAGES`, under the subjects that they have; how many bytes there are by now.

        Raises RefusedError and ApiError as `ChunkWriter` does.
        """
        seqs = rows["seq"].to_numpy()
        steps = np.diff(seqs, prepend=self._last)
        if (steps <= 0).any():
            raise build_duplicate_error(self._plan, leg, int(seqs[int(np.argmax(steps <= 0))]))
        if len(seqs) and int(seqs[-1]) > self._chunk.span.last:
            raise JsplanError(f"message {seqs[-1]:,} is not of the piece {self._chunk.span}")
        self._last = int(seqs[-1]) if len(seqs) else self._last
        self._writer.write(rows)
        return self._writer.size

    def finish(self) -> dict[str, Any]:
        """Everything is on disk; what was written."""
        return self._writer.finish() | {"lane": self._number}

    def close(self) -> None:
        """Let go of what is open."""
        self._writer.close()
