"""Export task: write a chunk of a stream as Parquet, one file per day.

The files go into the folder of the attempt. The task reads them back and leaves a receipt.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct, field
from msgspec.structs import asdict

from jsplan.backfill.message_schema import TABLE_SCHEMA, encode_headers, to_table
from jsplan.backfill.parquet.log import ArchiveFile, encode_document, receipt_name
from jsplan.backfill.parquet.reader import read_batches
from jsplan.backfill.parquet.store import ArchiveStore, NewFile
from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import BlockHasher
from jsplan.backfill.tasks.subject_transform import SubjectTransform, rename_subjects
from jsplan.errors import JsplanError, RefusedError
from jsplan.identity import KnownObject
from jsplan.planning.backfill.deadline import Deadline
from jsplan.planning.backfill.model import SeqRange
from jsplan.units import SECOND

#: Columns of a file: those of the format `jetstream`, a standard timestamp, and header blocks that
#: lists cannot represent exactly.
SCHEMA: Final = pa.schema(
    [*TABLE_SCHEMA, ("timestamp", pa.timestamp("us", tz="UTC")), ("raw_headers", pa.binary())]
)
#: Maximum rows and bytes of a row group.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 32 << 20
_DAY: Final = 86_400 * SECOND
_DICTIONARY_COLUMNS: Final = ["domain", "stream", "subject"]


class ExportChunk(Struct, frozen=True):
    """Input of one task.

    `domain` is the name of the origin's domain in `Jsplan-Origin`. `existing` are sequences of the
    chunk that the archive has. `known` is the stream that was pinned.
    """

    source: Endpoint
    domain: str
    stream: str
    span: SeqRange
    filters: tuple[str, ...]
    place: ArchiveStore
    attempt: str
    existing: SeqArray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    rate: int | None = None
    subject_transform: SubjectTransform | None = None
    deadline: Deadline | None = None
    known: KnownObject | None = None


def export_chunks(chunks: tuple[ExportChunk, ...]) -> Iterator[dict[str, Any]]:
    """Export the chunks, one after the other.

    Raises the errors of `read`, and RefusedError where the folder is not writable.
    """
    for chunk in chunks:
        yield _export_chunk(chunk)


def _export_chunk(chunk: ExportChunk) -> dict[str, Any]:
    started, transform = (
        time.monotonic(),
        chunk.subject_transform.compile() if chunk.subject_transform is not None else None,
    )
    request = ReadRequest(
        chunk.source.api_prefix, chunk.stream, *chunk.span, chunk.filters, known=chunk.known
    )
    with contextlib.closing(ChunkWriter(chunk)) as writer:
        for rows in read(chunk.source.open, request):
            if chunk.deadline is not None:
                chunk.deadline.require_open()
            writer.write(
                rename_subjects(
                    _drop_existing(rows, chunk.existing), transform, chunk.domain, chunk.stream
                )
            )
            if chunk.rate:
                time.sleep(max(0.0, writer.size / chunk.rate - (time.monotonic() - started)))
        return writer.finish()


class ChunkWriter:
    """Writer of one chunk: rows arrive sorted by sequence, and a receipt is left."""

    def __init__(self, chunk: ExportChunk) -> None:
        self._chunk = chunk
        self._files = _DayFiles(chunk)
        self._hasher = BlockHasher()
        self.size = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Write rows in the columns of `MESSAGE_SCHEMA`.

        Raises RefusedError where the folder is not writable.
        """
        with _explain_write_errors(self._chunk):
            self._files.add(rows)
        self._hasher.add(rows["subject"], rows["headers"], rows["data"])
        self.size += rows["headers"].nbytes + rows["data"].nbytes

    def finish(self) -> dict[str, Any]:
        """Write everything to disk, read it back, and return the receipt.

        Raises RefusedError, and JsplanError where the files differ from what was written.
        """
        with _explain_write_errors(self._chunk):
            self._files.close()
            _require_readback_equal(self._chunk, self._files.done, self._hasher)
            return _write_receipt(self._chunk, self._hasher.count, self.size, self._files.done)

    def close(self) -> None:
        """Close the open files, also after an error."""
        with contextlib.suppress(OSError):
            self._files.close()


def write_empty_receipts(chunks: Iterable[ExportChunk]) -> None:
    """Write the receipts of chunks without messages.

    Raises RefusedError where the folder is not writable.
    """
    for chunk in chunks:
        with _explain_write_errors(chunk):
            _write_receipt(chunk)


def _write_receipt(
    chunk: ExportChunk, rows: int = 0, size: int = 0, files: Sequence[ArchiveFile] = ()
) -> dict[str, Any]:
    receipt = {
        "span": list(chunk.span),
        "rows": rows,
        "bytes": size,
        "files": [asdict(file) for file in files],
    }
    chunk.place.write(receipt_name(chunk.span), encode_document(receipt))
    return receipt


@contextlib.contextmanager
def _explain_write_errors(chunk: ExportChunk) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(
            f"cannot write to {chunk.place}: {error.strerror or error}", hint=chunk.place.hint
        ) from None


def _drop_existing(rows: pa.RecordBatch, known: SeqArray) -> pa.RecordBatch:
    if not len(known):
        return rows
    return rows.filter(pa.array(~np.isin(rows["seq"].to_numpy(), known)))


def _require_readback_equal(
    chunk: ExportChunk, files: list[ArchiveFile], expected: BlockHasher
) -> None:
    """Raise JsplanError unless the files have every message, in order, each once."""
    stored = BlockHasher()
    for rows in read_batches([(chunk.place, file) for file in files]):
        stored.add(rows["subject"], rows["headers"], rows["data"])
    if (stored.count, stored.hashes()) != (expected.count, expected.hashes()):
        raise JsplanError(
            f"the files in {chunk.place} differ from the messages of {chunk.stream}",
            hint="Check the disk.",
        )


def to_file_schema(domain: str, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert messages to the columns of a file."""
    table = to_table(domain, stream, rows)
    again = encode_headers(table["headers"])
    raw = pc.if_else(pc.equal(again, rows["headers"]), pa.scalar(None, BYTES), rows["headers"])
    stamps = pc.divide(rows["time"], 1000).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([*table.columns, stamps, raw], schema=SCHEMA)


class _DayFiles:
    """Files of a chunk, one for each day. Message times almost always ascend."""

    def __init__(self, chunk: ExportChunk) -> None:
        self._chunk = chunk
        self._open_files: dict[int, _OpenFile] = {}
        self.done: list[ArchiveFile] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add messages."""
        if not rows.num_rows:
            return
        days = rows["time"].to_numpy() // _DAY
        table = to_file_schema(self._chunk.domain, self._chunk.stream, rows)
        for day in np.unique(days):
            if day not in self._open_files:
                self._open_files[int(day)] = _OpenFile(self._chunk, int(day))
            of_day = pa.array(days == day)
            self._open_files[int(day)].add(
                table.filter(of_day),
                sum(rows[name].filter(of_day).nbytes for name in ("subject", "headers", "data")),
            )

    def close(self) -> None:
        """Write everything to disk."""
        self.done = [open_file.close() for _, open_file in sorted(self._open_files.items())]
        self._open_files = {}


class _OpenFile:
    """One file that is being written."""

    def __init__(self, chunk: ExportChunk, day: int) -> None:
        folder = f"day={datetime.fromtimestamp(day * 86_400, UTC):%Y-%m-%d}"
        stream = "".join(
            c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in chunk.stream
        )
        # Two tasks may write the same chunk. Each has its own files, and the last receipt counts.
        writer = f"{chunk.attempt}-{os.urandom(4).hex()}"
        self._name = f"{folder}/{stream}-{chunk.span.first:012}-{writer}.parquet"
        self._hash = _HashingFile(chunk.place.open_new(self._name))
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
    extremes = pc.min_max(column).as_py()
    return min(bounds[0], extremes["min"]), max(bounds[1], extremes["max"])


class _HashingFile:
    """File that computes the sha256 of its content."""

    def __init__(self, file: NewFile) -> None:
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
        """Do nothing: `finish` writes everything."""

    def close(self) -> None:
        """Do nothing: `finish` closes the file."""

    def finish(self) -> tuple[int, str]:
        """Write everything to disk, and return size and digest."""
        self._file.close()
        self.closed = True
        return self._size, self._sha.hexdigest()
