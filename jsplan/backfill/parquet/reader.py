"""Read the files of an archive as messages, in the order of their sequences."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsplan.backfill.message_schema import encode_headers
from jsplan.backfill.parquet.manifest import DAMAGED_HINT, ArchiveFile
from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore
from jsplan.backfill.protocol.frames import BYTES, MESSAGE_SCHEMA
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import SeqRange

#: A file's entry in the manifest of the archive, and its place.
LocatedFile = tuple[ArchiveStore, ArchiveFile]
_READ_COLUMNS: Final = ["seq", "time", "subject", "headers", "raw_headers", "data"]
#: Approximate bytes per decoded batch.
_BATCH_BYTES: Final = 8 << 20


def require_unchanged_files(files: Iterable[LocatedFile]) -> None:
    """Raise RefusedError for a file that changed after it was written."""
    for place, file in files:
        path = place.locate(file.name)
        try:
            _, digest = _hash_file(place, file.name)
        except OSError as error:
            raise RefusedError(
                f"{path} cannot be read: {error.strerror}", hint=place.hint
            ) from None
        if digest != file.sha256:
            raise RefusedError(
                f"{path} was changed after it was written: its sha256 differs", hint=DAMAGED_HINT
            )


def read_batches(files: Sequence[LocatedFile], span: SeqRange) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a range in the columns of `MESSAGE_SCHEMA`.

    Files are in order of their sequences, and their ranges do not overlap.
    """
    for placed in files:
        place, file = placed
        if file.last_seq < span.first or file.first_seq > span.last:
            continue
        with _explain_read_errors(placed):
            for rows in read_file(place, file.name):
                seq = rows["seq"].to_numpy()
                inside = (seq >= span.first) & (seq <= span.last)
                if inside.any():
                    yield rows if inside.all() else rows.filter(pa.array(inside))


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
    place, file = placed
    with _explain_read_errors(placed), place.open(file.name) as opened:
        return pq.ParquetFile(opened).read(columns=["seq", "time"])


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


def read_file(place: ArchiveStore, name: str) -> Iterator[pa.RecordBatch]:
    """Yield the messages of one file. Raises OSError and ArrowInvalid."""
    with place.open(name) as opened, pq.ParquetFile(opened) as file:
        rows, size = (
            max(1, file.metadata.num_rows),
            sum(file.metadata.row_group(n).total_byte_size for n in range(file.num_row_groups)),
        )
        for batch in file.iter_batches(
            max(1, min(rows, _BATCH_BYTES * rows // max(1, size))), columns=_READ_COLUMNS
        ):
            yield _to_messages(batch)


def describe_file(
    place: ArchiveStore, located: str, name: str, add: Callable[..., None] | None = None
) -> ArchiveFile:
    """Read a whole file, and return its entry in the manifest under a name.

    `add` is called with the subjects, headers and payloads of each batch. Raises FileNotFoundError,
    and ArchiveError where it has not been written by jsplan.
    """
    rows = content = 0
    seqs, times = (1 << 63, 0), (1 << 63, -(1 << 63))
    size, digest = _hash_file(place, located)
    try:
        for batch in read_file(place, located):
            if add is not None:
                add(batch["subject"], batch["headers"], batch["data"])
            rows += batch.num_rows
            content += sum(batch[column].nbytes for column in ("subject", "headers", "data"))
            seqs, times = _widen(seqs, batch["seq"]), _widen(times, batch["time"])
    except (pa.ArrowException, KeyError) as error:
        raise ArchiveError(
            f"{place.locate(located)} cannot be read: {error}", hint=DAMAGED_HINT
        ) from None
    bounds = (*seqs, *times) if rows else (0, 0, 0, 0)
    return ArchiveFile(name, rows, size, digest, *bounds, content)


def _widen(bounds: tuple[int, int], column: pa.Array) -> tuple[int, int]:
    if not len(column):
        return bounds
    extremes = pc.min_max(column).as_py()
    return min(bounds[0], extremes["min"]), max(bounds[1], extremes["max"])


def _hash_file(place: ArchiveStore, name: str) -> tuple[int, str]:
    """Return size and sha256 of a file. Raises OSError."""
    digest, size = hashlib.sha256(), 0
    with place.open(name) as opened:
        while data := opened.read(_BATCH_BYTES):
            digest.update(data)
            size += len(data)
    return size, digest.hexdigest()


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
