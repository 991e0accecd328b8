"""Read the files of an archive as messages, in the order of their sequences."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsplan.backfill.message_schema import encode_headers
from jsplan.backfill.parquet.log import DAMAGED_HINT, ArchiveFile
from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore
from jsplan.backfill.protocol.frames import BYTES, MESSAGE_SCHEMA
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import SeqRange

#: A file's entry in the log of the archive, and its place.
LocatedFile = tuple[ArchiveStore, ArchiveFile]
_READ_COLUMNS: Final = ["seq", "time", "subject", "headers", "raw_headers", "data"]
#: Approximate bytes per decoded batch.
_BATCH_BYTES: Final = 8 << 20


def require_unchanged_files(files: Iterable[LocatedFile]) -> None:
    """Raise RefusedError for a file that changed after it was written."""
    for place, file in files:
        digest, path = hashlib.sha256(), place.locate(file.name)
        try:
            with place.open(file.name) as opened:
                while data := opened.read(_BATCH_BYTES):
                    digest.update(data)
        except OSError as error:
            raise RefusedError(
                f"{path} cannot be read: {error.strerror}", hint=place.hint
            ) from None
        if digest.hexdigest() != file.sha256:
            raise RefusedError(
                f"{path} was changed after it was written: its sha256 differs", hint=DAMAGED_HINT
            )


def read_batches(
    files: Sequence[LocatedFile], span: SeqRange | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of the files in the columns of `MESSAGE_SCHEMA`, in order of sequence.

    With `span`, only its messages.
    """
    for group in _group_overlapping(
        file
        for file in files
        if span is None or (file[1].last_seq >= span.first and file[1].first_seq <= span.last)
    ):
        for rows in _read_file(group[0]) if len(group) == 1 else _read_merged(group):
            wanted = rows if span is None else _filter_range(rows, span)
            if wanted.num_rows:
                yield wanted


def read_sequences(files: Iterable[LocatedFile]) -> tuple[SeqArray, SeqArray]:
    """Return the sequence and time of every message, sorted."""
    found = [_read_seqs_and_times(placed) for placed in files]
    seqs, times = (
        np.concatenate([table[name].to_numpy() for table in found] or [np.empty(0, dtype=np.int64)])
        for name in ("seq", "time")
    )
    order = np.argsort(seqs, kind="stable")
    return seqs[order], times[order]


def _read_seqs_and_times(placed: LocatedFile) -> pa.Table:
    with _explain_read_errors(placed), _open_file(placed) as file:
        return file.read(columns=["seq", "time"])


@contextlib.contextmanager
def _open_file(placed: LocatedFile) -> Iterator[pq.ParquetFile]:
    place, file = placed
    with place.open(file.name) as opened, pq.ParquetFile(opened) as found:
        yield found


@contextlib.contextmanager
def _explain_read_errors(placed: LocatedFile) -> Iterator[None]:
    """Raise an error that explains why a file cannot be read.

    The usual reason is that it was changed.
    """
    try:
        yield
    except (OSError, pa.ArrowInvalid) as error:
        require_unchanged_files([placed])
        place, file = placed
        raise ArchiveError(f"{place.locate(file.name)} cannot be read: {error}") from None


def _group_overlapping(files: Iterable[LocatedFile]) -> Iterator[list[LocatedFile]]:
    """Yield the files in order; those with overlapping ranges (midnight) share a group."""
    group: list[LocatedFile] = []
    last = -1
    for placed in sorted(files, key=lambda located: (located[1].first_seq, located[1].last_seq)):
        if group and placed[1].first_seq > last:
            yield group
            group = []
        group.append(placed)
        last = max(last, placed[1].last_seq)
    if group:
        yield group


def _read_file(placed: LocatedFile) -> Iterator[pa.RecordBatch]:
    with _explain_read_errors(placed), _open_file(placed) as file:
        rows, size = (
            max(1, file.metadata.num_rows),
            sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)),
        )
        for batch in file.iter_batches(
            max(1, min(rows, _BATCH_BYTES * rows // max(1, size))), columns=_READ_COLUMNS
        ):
            yield _to_messages(batch)


def _read_merged(group: list[LocatedFile]) -> Iterator[pa.RecordBatch]:
    whole = pa.Table.from_batches(
        [rows for placed in group for rows in _read_file(placed)], MESSAGE_SCHEMA
    )
    yield from whole.take(pc.sort_indices(whole["seq"])).combine_chunks().to_batches()


def _to_messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    headers = pc.coalesce(rows["raw_headers"], encode_headers(rows["headers"]))
    columns: list[Any] = [
        rows["seq"],
        rows["time"],
        rows["subject"].view(BYTES),
        headers,
        rows["data"],
    ]
    return pa.RecordBatch.from_arrays(columns, schema=MESSAGE_SCHEMA)


def _filter_range(rows: pa.RecordBatch, span: SeqRange) -> pa.RecordBatch:
    seq = rows["seq"].to_numpy()
    inside = (seq >= span.first) & (seq <= span.last)
    return rows if inside.all() else rows.filter(pa.array(inside))
