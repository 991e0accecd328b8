"""Read either side of an origin from an archive for verification."""

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
from jsplan.backfill.rows.message_rows import (
    IMPOSSIBLE,
    LATE,
    ROW_SCHEMA,
    ComparedOrigin,
    to_stored_rows,
)
from jsplan.backfill.rows.partitioned_rows import to_presence_rows
from jsplan.planning.backfill.model import SeqRange

#: Rows per batch.
_BATCH_ROWS: Final = 1 << 16


def read_archived_origin_rows(
    files: Sequence[LocatedFile], origin: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """Read the archive as the origin. Raises RefusedError for a changed file."""
    require_unchanged_files(files)
    for rows in read_batches(files, SeqRange(origin.first, origin.last)):
        yield to_stored_rows(origin, rows)


def read_archived_presence(
    files: Sequence[LocatedFile], origin: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """Read which messages the archive has as the origin. Raises RefusedError for a bad file."""
    seqs, _ = read_sequences(files)
    seqs = seqs[
        np.searchsorted(seqs, origin.first) : np.searchsorted(seqs, origin.last, side="right")
    ]
    yield from (
        to_presence_rows(origin, seqs[start : start + _BATCH_ROWS])
        for start in range(0, len(seqs), _BATCH_ROWS)
    )


def read_archived_target_rows(
    files: Sequence[LocatedFile], origin: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """Read the archive as the target. Raises RefusedError for a changed file."""
    require_unchanged_files(files)
    last = 0
    for rows in read_batches(files, SeqRange(origin.first, origin.last)):
        stored = to_stored_rows(origin, rows)
        seq = stored["seq"].to_numpy()
        highest = np.maximum.accumulate(np.concatenate([[last], seq]))
        mark = np.where(seq > origin.last_possible_seq, IMPOSSIBLE, 0) | np.where(
            seq < highest[:-1], LATE, 0
        )
        last = int(highest[-1])
        columns = {name: stored[name] for name in ROW_SCHEMA.names} | {
            "side": pa.array(np.ones(len(seq), dtype=np.int32)),
            "place": stored["seq"],
            "mark": pa.array(mark.astype(np.int32)),
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=ROW_SCHEMA)
