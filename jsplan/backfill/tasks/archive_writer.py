"""Export task: write a chunk of a stream as one Parquet file.

The task writes a file below `_jsplan/`, reads it back, and gives it the name of the chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec import Struct
from msgspec.structs import asdict

from jsplan.backfill.message_schema import TABLE_SCHEMA, encode_headers, to_table
from jsplan.backfill.parquet.manifest import DAMAGED_HINT, ArchiveFile, name_part
from jsplan.backfill.parquet.reader import describe_file
from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore, NewFile
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.tasks.hashes import BlockHasher
from jsplan.backfill.tasks.partition_writer import build_duplicate_error
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, read_chunk
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import ApiError, JsplanError, RefusedError
from jsplan.planning.backfill.model import SeqRange

#: Columns of a file: those of the format `jetstream`, a standard timestamp, and header blocks that
#: lists cannot represent exactly.
SCHEMA: Final = pa.schema(
    [*TABLE_SCHEMA, ("timestamp", pa.timestamp("us", tz="UTC")), ("raw_headers", pa.binary())]
)
#: Maximum rows and bytes of a row group.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 32 << 20
_DICTIONARY_COLUMNS: Final = ["domain", "stream", "subject"]


class ExportChunk(Struct, frozen=True):
    """One chunk of an archive: its range, the name of its file, and the place."""

    span: SeqRange
    name: str
    place: ArchiveStore


def export_chunks(plan: PartitionPlan, chunks: tuple[ExportChunk, ...]) -> Iterator[dict[str, Any]]:
    """Export chunks of the only origin of a plan; yield the entry of each file in the manifest.

    A chunk whose file is there is not read again. Raises the errors of `read_chunk`, and
    RefusedError where the folder is not writable.
    """
    for chunk in chunks:
        found = _describe_existing(chunk)
        yield found if found is not None else _export_chunk(plan, chunk)


def _export_chunk(plan: PartitionPlan, chunk: ExportChunk) -> dict[str, Any]:
    origin, transform = plan.origin_tasks[0], plan.transforms.compile_subjects()
    with contextlib.closing(ChunkWriter(plan, chunk)) as writer:
        for rows in read_chunk(plan, ReadChunk(0, (chunk.span,))):
            writer.write(0, rename_subjects(rows, transform, origin.domain, origin.stream))
        return writer.finish()


class ChunkWriter:
    """Writer of one chunk. Rows arrive sorted by sequence; a repeated sequence is refused."""

    def __init__(self, plan: PartitionPlan, chunk: ExportChunk) -> None:
        self._plan, self._origin, self._chunk = plan, plan.origin_tasks[0], chunk
        self._hasher = BlockHasher()
        self._last = chunk.span.first - 1
        self._size = self._buffered_bytes = self._buffered_rows = 0
        self._buffered: list[pa.RecordBatch] = []
        self._part = name_part(chunk.name)
        with _explain_write_errors(chunk):
            self._sink = _Sink(chunk.place.open_new(self._part))
        # Many small row groups are slow to read, large values in a dictionary slow to write.
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, "w"),
            SCHEMA,
            compression="zstd",
            use_dictionary=_DICTIONARY_COLUMNS,
            write_statistics=[*_DICTIONARY_COLUMNS, "seq", "time"],
        )

    def write(self, _origin_number: int, rows: pa.RecordBatch) -> int:
        """Write rows in the columns of `MESSAGE_SCHEMA`, and return the bytes written so far.

        The subjects are final. Raises RefusedError where the folder is not writable.
        """
        if not rows.num_rows:
            return self._size
        chunk, origin, seqs = self._chunk, self._origin, rows["seq"].to_numpy()
        steps = np.diff(seqs, prepend=self._last)
        if (steps <= 0).any():
            seq = int(seqs[int(np.argmax(steps <= 0))])
            raise build_duplicate_error(self._plan, 0, seq)
        self._last = int(seqs[-1])
        if self._last > chunk.span.last:
            raise JsplanError(f"message {self._last:,} is not in the chunk {chunk.span}")
        self._hasher.add(rows["subject"], rows["headers"], rows["data"])
        self._buffered.append(to_file_schema(origin.domain, origin.stream, rows))
        self._buffered_rows += rows.num_rows
        self._buffered_bytes += rows.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._flush()
        self._size += rows["headers"].nbytes + rows["data"].nbytes
        return self._size

    def _flush(self) -> None:
        with _explain_write_errors(self._chunk):
            self._writer.write_table(pa.Table.from_batches(self._buffered, SCHEMA))
        self._buffered, self._buffered_bytes, self._buffered_rows = [], 0, 0

    def finish(self) -> dict[str, Any]:
        """Write everything to disk, read it back, and name it, if no other process was first.

        Returns the entry of the file in the manifest. Raises RefusedError, and JsplanError where
        the file differs from what was written.
        """
        if self._buffered:
            self._flush()
        chunk, place = self._chunk, self._chunk.place
        with _explain_write_errors(chunk):
            self._writer.close()
            self._sink.finish()
            stored = BlockHasher()
            file = describe_file(place, self._part, chunk.name, stored.add)
            if (stored.count, stored.hashes()) != (self._hasher.count, self._hasher.hashes()):
                written = place.locate(self._part)
                raise JsplanError(
                    f"{written} differs from the messages of {self._origin.stream}",
                    hint="Check the disk.",
                )
            with contextlib.suppress(FileExistsError):
                place.link(self._part, chunk.name)
                return asdict(file)
        found = _describe_existing(chunk)
        if found is None:
            raise ApiError(f"another process deleted {place.locate(chunk.name)}")
        return found

    def close(self) -> None:
        """Close and delete the file below `_jsplan/`, also after an error."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._sink.finish()
            self._chunk.place.delete(self._part)


def _describe_existing(chunk: ExportChunk) -> dict[str, Any] | None:
    """Return the entry of the file of a chunk; None if there is none. Raises ArchiveError."""
    with _explain_write_errors(chunk):
        try:
            file: ArchiveFile = describe_file(chunk.place, chunk.name, chunk.name)
        except FileNotFoundError:
            return None
    if file.rows and not chunk.span.first <= file.first_seq <= file.last_seq <= chunk.span.last:
        raise ArchiveError(
            f"{chunk.place.locate(chunk.name)} has other messages than its name says",
            hint=DAMAGED_HINT,
        )
    return asdict(file)


@contextlib.contextmanager
def _explain_write_errors(chunk: ExportChunk) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(
            f"cannot write to {chunk.place}: {error.strerror or error}", hint=chunk.place.hint
        ) from None


def to_file_schema(domain: str, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert messages to the columns of a file."""
    table = to_table(domain, stream, rows)
    again = encode_headers(table["headers"])
    raw = pc.if_else(pc.equal(again, rows["headers"]), pa.scalar(None, BYTES), rows["headers"])
    stamps = pc.divide(rows["time"], 1000).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([*table.columns, stamps, raw], schema=SCHEMA)


class _Sink:
    """File of an archive as Parquet writers want it."""

    def __init__(self, file: NewFile) -> None:
        self._file = file
        self._size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        self._size += memoryview(data).nbytes
        return self._file.write(data)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Do nothing: `finish` writes everything."""

    def close(self) -> None:
        """Do nothing: `finish` closes the file."""

    def finish(self) -> None:
        """Write everything to disk."""
        self._file.close()
        self.closed = True
