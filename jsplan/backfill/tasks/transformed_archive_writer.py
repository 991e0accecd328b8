"""Write a chunk of an archive from rows that SQL or a function returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.tasks.archive_writer import ChunkWriter, ExportChunk
from jsplan.backfill.tasks.partition_writer import build_duplicate_error
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from jsplan.backfill.tasks.partitioning import PartitionPlan


class TransformedChunkWriter:
    """Writer of one chunk, like `PartitionWriter` for a partition.

    Rows arrive sorted by sequence. A repeated sequence is refused.
    """

    def __init__(self, plan: PartitionPlan, chunks: Sequence[ExportChunk], number: int) -> None:
        self._plan = plan
        self._number = number
        self._chunk = chunks[number]
        self._writer = ChunkWriter(self._chunk)
        self._last = self._chunk.span.first - 1

    def write(self, origin_number: int, rows: pa.RecordBatch) -> int:
        """Write rows in the columns of `MESSAGE_SCHEMA`, and return the bytes written so far.

        The subjects are final. Raises RefusedError and ApiError like `ChunkWriter`.
        """
        seqs = rows["seq"].to_numpy()
        steps = np.diff(seqs, prepend=self._last)
        if (steps <= 0).any():
            raise build_duplicate_error(
                self._plan, origin_number, int(seqs[int(np.argmax(steps <= 0))])
            )
        if len(seqs) and int(seqs[-1]) > self._chunk.span.last:
            raise JsplanError(f"message {seqs[-1]:,} is not in the chunk {self._chunk.span}")
        self._last = int(seqs[-1]) if len(seqs) else self._last
        self._writer.write(rows)
        return self._writer.size

    def finish(self) -> dict[str, Any]:
        """Wait until everything is on disk, and return the result."""
        return self._writer.finish() | {"partition": self._number}

    def close(self) -> None:
        """Close the open files."""
        self._writer.close()
