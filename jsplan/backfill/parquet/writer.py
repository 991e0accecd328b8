"""What one task of an archive does: read a piece of a stream and write it as Parquet, one file for each day, into the folder of its
attempt; read it back, and leave a receipt. What becomes of the files is left to `export_chunks`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from jsplan.backfill.message_schema import TABLE_SCHEMA, encode_headers, to_table
from jsplan.backfill.parquet.log import ArchiveFile, write_document
from jsplan.backfill.parquet.reader import read_batches
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import BlockHasher, encode_canonical
from jsplan.backfill.tasks.subject_transform import SubjectTransform, rename_subjects
from jsplan.backfill.windows import Deadline
from jsplan.errors import ApiError, JsplanError, RefusedError
from jsplan.units import SECOND

#: The columns of a file: those of the format `jetstream`, a time that every tool knows, and header blocks that lists cannot say exactly.
SCHEMA: Final = pa.schema(
    [*TABLE_SCHEMA, ("timestamp", pa.timestamp("us", tz="UTC")), ("raw_headers", pa.binary())]
)
#: A row group ends after so many rows or bytes.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 32 << 20
_DAY: Final = 86_400 * SECOND
_DICTIONARY_COLUMNS: Final = ["domain", "stream", "subject"]


@dataclass(frozen=True, slots=True)
class ExportChunk:
    """One task. `domain` is what the origin's is called in `Jsplan-Origin`; `existing` are sequences of the piece that the archive has."""

    source: Endpoint
    domain: str
    stream: str
    span: SeqRange
    filters: tuple[str, ...]
    folder: str
    attempt: str
    existing: SeqArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rate: int | None = None
    subject_transform: SubjectTransform | None = None
    deadline: Deadline | None = None


def export_chunks(pieces: tuple[ExportChunk, ...]) -> Iterator[dict[str, Any]]:
    """Carry them out, one after the other. Raises what `wire.read` raises, and RefusedError where the folder takes nothing."""
    for piece in pieces:
        yield _export_chunk(piece)


def _export_chunk(piece: ExportChunk) -> dict[str, Any]:
    started, mapping = (
        time.monotonic(),
        piece.subject_transform.compile() if piece.subject_transform is not None else None,
    )
    what = ReadRequest(
        piece.source.api_prefix, piece.stream, piece.span.first, piece.span.last, piece.filters
    )
    with contextlib.closing(ChunkWriter(piece)) as writer:
        for found in read(piece.source.open, what):
            if piece.deadline is not None:
                piece.deadline.require_open()
            writer.write(
                rename_subjects(
                    _drop_existing(found, piece.existing), mapping, piece.domain, piece.stream
                )
            )
            if piece.rate:
                time.sleep(max(0.0, writer.size / piece.rate - (time.monotonic() - started)))
        return writer.finish()


class ChunkWriter:
    """Writes the files of one piece, of rows that come by sequence, and leaves a receipt of it."""

    def __init__(self, piece: ExportChunk) -> None:
        self._chunk = piece
        self._files = _DayFiles(piece)
        self._hasher = BlockHasher()
        self.size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Write more, in the columns of `MESSAGES`. Raises RefusedError where the folder takes nothing."""
        with _explain_write_errors(self._chunk):
            self._files.add(rows)
        self._hasher.add(encode_canonical(rows["subject"], rows["headers"], rows["data"]))
        self.size += rows["headers"].nbytes + rows["data"].nbytes

    def finish(self) -> dict[str, Any]:
        """The receipt: everything is on disk, and was read back. Raises RefusedError, and JsplanError where it is not what was written."""
        with _explain_write_errors(self._chunk):
            self._files.close()
            _require_readback_equal(self._chunk, self._files.done, self._hasher)
            return _write_receipt(self._chunk, self._hasher.count, self.size, self._files.done)

    def close(self) -> None:
        """Let go of what is open, whatever became of it."""
        with contextlib.suppress(OSError):
            self._files.close()


def write_empty_receipts(pieces: Iterable[ExportChunk]) -> None:
    """Leave the receipts of pieces of which there was nothing to write. Raises RefusedError where the folder takes nothing."""
    for piece in pieces:
        with _explain_write_errors(piece):
            _write_receipt(piece)


def _write_receipt(
    piece: ExportChunk, rows: int = 0, size: int = 0, files: Sequence[ArchiveFile] = ()
) -> dict[str, Any]:
    said = {
        "span": list(piece.span),
        "rows": rows,
        "bytes": size,
        "files": [asdict(file) for file in files],
    }
    write_document(Path(piece.folder) / f"piece-{piece.span.first}-{piece.span.last}.json", said)
    return said


@contextlib.contextmanager
def _explain_write_errors(piece: ExportChunk) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise ApiError(
            f"a piece of {piece.stream} was begun by another attempt",
            hint="It is written by the next attempt.",
        ) from None
    except OSError as error:
        raise RefusedError(
            f"cannot write to {piece.folder}: {error.strerror or error}",
            hint="An archive is a folder that this machine, and on a cluster every worker, reaches under the same path.",
        ) from None


def _drop_existing(rows: pa.RecordBatch, known: SeqArray) -> pa.RecordBatch:
    if not len(known):
        return rows
    return rows.filter(pa.array(~np.isin(rows["seq"].to_numpy(), known)))


def _require_readback_equal(
    piece: ExportChunk, files: list[ArchiveFile], blocks: BlockHasher
) -> None:
    """What is in the files is what was read: every message, in order, each once."""
    found = BlockHasher()
    for rows in read_batches(tuple((f"{piece.folder}/{file.name}", file) for file in files)):
        found.add(encode_canonical(rows["subject"], rows["headers"], rows["data"]))
    if (found.count, found.hashes()) != (blocks.count, blocks.hashes()):
        raise JsplanError(
            f"what was written to {piece.folder} is not what {piece.stream} has",
            hint="Is something wrong with the disk?",
        )


def to_file_schema(domain: str, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Messages as read, in the columns of a file."""
    found = to_table(domain, stream, rows)
    again = encode_headers(found["headers"])
    raw = pc.if_else(pc.equal(again, rows["headers"]), pa.scalar(None, BYTES), rows["headers"])
    stamps = pc.divide(rows["time"], 1000).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([*found.columns, stamps, raw], schema=SCHEMA)


class _DayFiles:
    """The files of a piece, one for each day. Messages come in the order of their times, all but."""

    def __init__(self, piece: ExportChunk) -> None:
        self._chunk = piece
        self._open_files: dict[int, _OpenFile] = {}
        self.done: list[ArchiveFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Take more messages."""
        if not rows.num_rows:
            return
        days = rows["time"].to_numpy() // _DAY
        found = to_file_schema(self._chunk.domain, self._chunk.stream, rows)
        for day in np.unique(days):
            if day not in self._open_files:
                self._open_files[int(day)] = _OpenFile(self._chunk, int(day))
            mine = pa.array(days == day)
            self._open_files[int(day)].add(
                found.filter(mine),
                sum(rows[name].filter(mine).nbytes for name in ("subject", "headers", "data")),
            )

    def close(self) -> None:
        """Everything is on disk then."""
        self.done = [growing.close() for _, growing in sorted(self._open_files.items())]
        self._open_files = {}


class _OpenFile:
    """One file that is being written."""

    def __init__(self, piece: ExportChunk, day: int) -> None:
        folder = f"day={datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}"
        stream = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in piece.stream
        )
        self._name = f"{folder}/{stream}-{piece.span.first:012}-{piece.attempt}.parquet"
        path = Path(piece.folder) / self._name
        path.parent.mkdir(exist_ok=True)
        self._hash = _HashingFile(
            path.open("xb")
        )  # of two that write a piece, one that sleeps among them, the second is refused
        # Many small row groups are slow to read, large values in a dictionary slow to write.
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._hash, "w"),
            SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=[*_DICTIONARY_COLUMNS, "seq", "time"],
        )
        self._buffered: list[pa.RecordBatch] = []
        self._seqs = (1 << 63, 0)
        self._times = (1 << 63, 0)
        self._rows = self._content = 0

    def add(self, rows: pa.RecordBatch, content: int) -> None:
        self._buffered.append(rows)
        self._rows += rows.num_rows
        self._content += content
        self._seqs, self._times = (
            _widen_bounds(self._seqs, rows["seq"]),
            _widen_bounds(self._times, rows["time"]),
        )
        if (
            sum(batch.num_rows for batch in self._buffered) >= ROW_GROUP_ROWS
            or sum(batch.nbytes for batch in self._buffered) >= ROW_GROUP_BYTES
        ):
            self._flush()

    def _flush(self) -> None:
        if self._buffered:
            self._writer.write_table(pa.Table.from_batches(self._buffered, SCHEMA))
            self._buffered = []

    def close(self) -> ArchiveFile:
        self._flush()
        self._writer.close()
        size, digest = self._hash.finish()
        return ArchiveFile(
            self._name, self._rows, size, digest, *self._seqs, *self._times, self._content
        )


def _widen_bounds(bounds: tuple[int, int], column: pa.Array) -> tuple[int, int]:
    found = pc.min_max(column).as_py()
    return min(bounds[0], found["min"]), max(bounds[1], found["max"])


class _HashingFile:
    """A file that knows the sha256 of what was written to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._sha = hashlib.sha256()
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._sha.update(data)
        self._size += memoryview(data).nbytes
        return self._file.write(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Closed by `finish`."""

    def finish(self) -> tuple[int, str]:
        """Size and digest, once everything is on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self.closed = True
        return self._size, self._sha.hexdigest()
