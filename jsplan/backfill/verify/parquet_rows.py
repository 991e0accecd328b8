"""What verify reads of an archive, as `comparing` does of a stream: either side of a leg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.parquet.reader import (
    LocatedFile,
    read_batches,
    read_sequences,
    require_unchanged_files,
)
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.verify.message_rows import (
    IMPOSSIBLE,
    LATE,
    ROW_SCHEMA,
    ComparedOrigin,
    to_stored_rows,
)
from jsplan.backfill.verify.partitioned_rows import to_presence_rows

#: So many rows are told at once.
_BATCH_ROWS: Final = 1 << 16


def read_archived_origin_rows(
    files: Sequence[LocatedFile], leg: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """The archive in the place of the origin. Raises RefusedError for a file that is not what was written."""
    require_unchanged_files(files)
    for rows in read_batches(files, SeqRange(leg.first, leg.last)):
        yield to_stored_rows(leg, rows)


def read_archived_presence(
    files: Sequence[LocatedFile], leg: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """Which messages the archive has in the place of the origin. Raises RefusedError as above."""
    seqs, _ = read_sequences(files)
    seqs = seqs[np.searchsorted(seqs, leg.first) : np.searchsorted(seqs, leg.last, side="right")]
    yield from (
        to_presence_rows(leg, seqs[start : start + _BATCH_ROWS])
        for start in range(0, len(seqs), _BATCH_ROWS)
    )


def read_archived_target_rows(
    files: Sequence[LocatedFile], leg: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """The archive as what the origin was copied to. Raises RefusedError for a file that is not what was written."""
    require_unchanged_files(files)
    last = 0
    for rows in read_batches(files, SeqRange(leg.first, leg.last)):
        found = to_stored_rows(leg, rows)
        seq = found["seq"].to_numpy()
        highest = np.maximum.accumulate(np.concatenate([[last], seq]))
        mark = np.where(seq > leg.last_possible_seq, IMPOSSIBLE, 0) | np.where(
            seq < highest[:-1], LATE, 0
        )
        last = int(highest[-1])
        columns = {name: found[name] for name in ROW_SCHEMA.names} | {
            "side": pa.array(np.ones(len(seq), dtype=np.int32)),
            "place": found["seq"],
            "mark": pa.array(mark.astype(np.int32)),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=ROW_SCHEMA)
