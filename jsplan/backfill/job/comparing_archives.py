"""What verify reads of an archive, as `comparing` does of a stream: either side of a leg."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.job.archived import Placed, batches, require_unharmed, sequences_of
from jsplan.backfill.job.comparing import IMPOSSIBLE, LATE, ROWS, Compared, as_stored
from jsplan.backfill.job.comparing_lanes import present
from jsplan.backfill.ranges import Span

#: So many rows are told at once.
_ROWS: Final = 1 << 16


def archive_as_origin(files: Sequence[Placed], leg: Compared) -> Iterator[pa.RecordBatch]:
    """The archive in the place of the origin. Raises RefusedError for a file that is not what was written."""
    require_unharmed(files)
    for rows in batches(files, Span(leg.first, leg.last)):
        yield as_stored(leg, rows)


def present_in_archive(files: Sequence[Placed], leg: Compared) -> Iterator[pa.RecordBatch]:
    """Which messages the archive has in the place of the origin. Raises RefusedError as above."""
    seqs, _ = sequences_of(files)
    seqs = seqs[np.searchsorted(seqs, leg.first) : np.searchsorted(seqs, leg.last, side="right")]
    yield from (present(leg, seqs[start : start + _ROWS]) for start in range(0, len(seqs), _ROWS))


def archive_as_target(files: Sequence[Placed], leg: Compared) -> Iterator[pa.RecordBatch]:
    """The archive as what the origin was copied to. Raises RefusedError for a file that is not what was written."""
    require_unharmed(files)
    last = 0
    for rows in batches(files, Span(leg.first, leg.last)):
        found = as_stored(leg, rows)
        seq = found["seq"].to_numpy()
        highest = np.maximum.accumulate(np.concatenate([[last], seq]))
        mark = np.where(seq > leg.ceiling, IMPOSSIBLE, 0) | np.where(seq < highest[:-1], LATE, 0)
        last = int(highest[-1])
        columns = {name: found[name] for name in ROWS.names} | {
            "side": pa.array(np.ones(len(seq), dtype=np.int32)), "place": found["seq"], "mark": pa.array(mark.astype(np.int32)),
        }  # fmt: skip
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=ROWS)
