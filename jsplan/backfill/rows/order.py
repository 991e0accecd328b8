"""The order of copied messages in a target: per origin, per subject, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from jsplan.backfill.protocol.arrow_split import group_rows
from jsplan.backfill.seq_arrays import SeqArray

#: After a later message of the same attempt, and after a later message of an earlier attempt.
LATE, REPAIRED = 1, 2


class OrderTracker(Struct):
    """Marks messages of one origin that come after a later one, while a target is read in order.

    `order` is that of the entry. `highest` has the highest sequence of each subject (empty for
    `order: stream`) and staging stream (None: of all copies).
    """

    order: str = "stream"
    highest: dict[tuple[bytes, str | None], int] = field(default_factory=dict)

    def mark_rows(
        self, names: pa.Array, seqs: SeqArray, subjects: pa.BinaryArray
    ) -> np.ndarray[Any, Any]:
        """Return LATE or REPAIRED for each row.

        `names` are staging streams, empty for messages of a source.
        """
        if self.order == "stream":
            return self._mark_subject(b"", names, seqs)
        marks = np.zeros(len(seqs), dtype=np.int64)
        if self.order == "subject":
            for subject, places in group_rows(subjects):
                marks[places] = self._mark_subject(
                    subject, names.take(pa.array(places)), seqs[places]
                )
        return marks

    def _mark_subject(
        self, subject: bytes, names: pa.Array, seqs: SeqArray
    ) -> np.ndarray[Any, Any]:
        marks = np.zeros(len(seqs), dtype=np.int64)
        before_copies = self._advance((subject, None), seqs)
        for name, places in group_rows(names):
            before = before_copies[places]
            if name:
                before = self._advance((subject, name), seqs[places])
            mark = np.where(seqs[places] < before, LATE, REPAIRED)
            marks[places] = np.where(seqs[places] < before_copies[places], mark, 0)
        return marks

    def _advance(self, key: tuple[bytes, str | None], seqs: SeqArray) -> SeqArray:
        """Return the highest sequence before each row."""
        highest = np.maximum.accumulate(np.concatenate([[self.highest.get(key, 0)], seqs]))
        self.highest[key] = int(highest[-1])
        return highest[:-1]
