"""Writes a piece of an archive of what SQL or a function made of messages. Where the rows come from is left to Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jsplan.backfill.job.archiving import Piece, PieceWriter
from jsplan.backfill.job.lane_writing import made_twice
from jsplan.errors import JsplanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from jsplan.backfill.job.lanes import Job


class ShapedPiece:
    """The writer of one piece of a job, as `LaneWriter` is of a lane: rows come by sequence, and what comes twice is refused."""

    def __init__(self, job: Job, pieces: Sequence[Piece], number: int) -> None:
        self._job = job
        self._number = number
        self._piece = pieces[number]
        self._writer = PieceWriter(self._piece)
        self._last = self._piece.span.first - 1

    def take(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows, in the columns of `MESSAGES`, under the subjects that they have; how many bytes there are by now.

        Raises RefusedError and ApiError as `PieceWriter` does.
        """
        seqs = rows["seq"].to_numpy()
        steps = np.diff(seqs, prepend=self._last)
        if (steps <= 0).any():
            raise made_twice(self._job, leg, int(seqs[int(np.argmax(steps <= 0))]))
        if len(seqs) and int(seqs[-1]) > self._piece.span.last:
            raise JsplanError(f"message {seqs[-1]:,} is not of the piece {self._piece.span}")
        self._last = int(seqs[-1]) if len(seqs) else self._last
        self._writer.take(rows)
        return self._writer.size

    def finish(self) -> dict[str, Any]:
        """Everything is on disk; what was written."""
        return self._writer.finish() | {"lane": self._number}

    def close(self) -> None:
        """Let go of what is open."""
        self._writer.close()
