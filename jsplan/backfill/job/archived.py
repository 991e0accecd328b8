"""Reads the files of an archive as what a stream delivers, in the order of its sequences. Which files there are is left to `archive`."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsplan.backfill.columns import blocks_of
from jsplan.backfill.job.archive import ArchiveError, File
from jsplan.backfill.ranges import Span
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire.frames import BYTES, MESSAGES
from jsplan.disk import open_regular
from jsplan.errors import RefusedError

#: Where a file is, and what the archive's log says of it.
Placed = tuple[str, File]
_READ: Final = ["seq", "time", "subject", "headers", "raw_headers", "data"]
#: About so many bytes are decoded at once.
_SIZE: Final = 8 << 20


def require_unharmed(files: Iterable[Placed]) -> None:
    """Raise RefusedError for a file that is not what was written."""
    for path, file in files:
        digest = hashlib.sha256()
        try:
            with open_regular(Path(path)) as opened:
                while piece := opened.read(1 << 20):
                    digest.update(piece)
        except OSError as error:
            raise RefusedError(f"{path} cannot be read: {error.strerror}", hint="Every worker must reach it under this path.") from None
        if digest.hexdigest() != file.sha256:
            hint = "Take it away and run the backfill that wrote the archive: it copies what is missing."
            raise RefusedError(f"{path} is not what was written: its sha256 is another one", hint=hint)


def batches(files: Sequence[Placed], span: Span | None = None) -> Iterator[pa.RecordBatch]:
    """The messages of the files in the columns of `wire.MESSAGES`, in the order of their sequences; of `span` if one is given."""
    for group in _groups(file for file in files if span is None or (file[1].last_seq >= span.first and file[1].first_seq <= span.last)):
        for rows in _one(group[0]) if len(group) == 1 else _together(group):
            wanted = rows if span is None else _within(rows, span)
            if wanted.num_rows:
                yield wanted


def sequences_of(files: Iterable[Placed]) -> tuple[Sequences, Sequences]:
    """Sequence and time of every message, sorted."""
    found = [_seqs_and_times(placed) for placed in files]
    seqs, times = (np.concatenate([table[name].to_numpy() for table in found] or [np.empty(0, dtype=np.int64)]) for name in ("seq", "time"))
    order = np.argsort(seqs, kind="stable")
    return seqs[order], times[order]


def _seqs_and_times(placed: Placed) -> pa.Table:
    with _readable(placed):
        return pq.read_table(placed[0], columns=["seq", "time"], partitioning=None)


@contextlib.contextmanager
def _readable(placed: Placed) -> Iterator[None]:
    """A file that cannot be read says why: most often it is another than was written."""
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        require_unharmed([placed])
        raise ArchiveError(f"{placed[0]} cannot be read: {error}") from None


def _groups(files: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Files one after the other; those whose ranges overlap, at the turn of a day, together."""
    group: list[Placed] = []
    last = -1
    for placed in sorted(files, key=lambda one: (one[1].first_seq, one[1].last_seq)):
        if group and placed[1].first_seq > last:
            yield group
            group = []
        group.append(placed)
        last = max(last, placed[1].last_seq)
    if group:
        yield group


def _one(placed: Placed) -> Iterator[pa.RecordBatch]:
    with _readable(placed), pq.ParquetFile(placed[0]) as file:
        rows, size = max(1, file.metadata.num_rows), sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups))
        for batch in file.iter_batches(max(1, min(rows, _SIZE * rows // max(1, size))), columns=_READ):
            yield _message(batch)


def _together(group: list[Placed]) -> Iterator[pa.RecordBatch]:
    whole = pa.Table.from_batches([rows for placed in group for rows in _one(placed)], MESSAGES)
    yield from whole.take(pc.sort_indices(whole["seq"])).combine_chunks().to_batches()


def _message(rows: pa.RecordBatch) -> pa.RecordBatch:
    headers = pc.coalesce(rows["raw_headers"], blocks_of(rows["headers"]))
    columns: list[Any] = [rows["seq"], rows["time"], rows["subject"].view(BYTES), headers, rows["data"]]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGES)


def _within(rows: pa.RecordBatch, span: Span) -> pa.RecordBatch:
    seq = rows["seq"].to_numpy()
    inside = (seq >= span.first) & (seq <= span.last)
    return rows if inside.all() else rows.filter(pa.array(inside))
