"""Export task: write a chunk of a stream as one Parquet file.

The task writes a file below `_jsplan/`, reads it back, and gives it the name of the chunk.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from msgspec.structs import replace

from jsplan.backfill.message_schema import TABLE_SCHEMA, encode_headers, to_table
from jsplan.backfill.parquet.manifest import DAMAGED_HINT, ArchiveFile, Chunk, name_part
from jsplan.backfill.parquet.reader import describe_file
from jsplan.backfill.parquet.store import ArchiveError, ArchiveStore
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.tasks.hashes import BlockHasher
from jsplan.backfill.tasks.partition_writer import require_ascending
from jsplan.backfill.tasks.partitioning import PartitionPlan, ReadChunk, read_chunk
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import ApiError, JsplanError, RefusedError

#: Columns of a file: those of the format `jetstream`, a standard timestamp, and header blocks that
#: lists cannot represent exactly.
SCHEMA: Final = pa.schema(
    [*TABLE_SCHEMA, ("timestamp", pa.timestamp("us", tz="UTC")), ("raw_headers", pa.binary())]
)
#: Maximum rows and bytes of a row group.
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1 << 16, 32 << 20
_DICTIONARY_COLUMNS: Final = ["domain", "stream", "subject"]


def export_chunks(plan: PartitionPlan) -> Iterator[ArchiveFile]:
    """Export the chunks of a plan; yield the entry of each file in the manifest.

    A chunk whose file is there is not read again. Raises the errors of `read_chunk`, and
    RefusedError where the folder is not writable.
    """
    origin, transform = plan.origin_tasks[0], plan.transforms.compile_subjects()
    for number, chunk in enumerate(plan.chunks):
        file = _describe_existing(_place(plan), chunk)
        if file is None:
            with contextlib.closing(ChunkWriter(plan, number)) as writer:
                for rows in read_chunk(plan, ReadChunk(0, (chunk.span,))):
                    writer.write(0, rename_subjects(rows, transform, origin.domain, origin.stream))
                file = writer.finish()
        yield file


def _place(plan: PartitionPlan) -> ArchiveStore:
    assert plan.store is not None, "a plan with chunks"
    return plan.store


class ChunkWriter:
    """Writer of one chunk. Rows arrive sorted by sequence; a repeated sequence is refused."""

    def __init__(self, plan: PartitionPlan, number: int) -> None:
        self._plan, self._origin = plan, plan.origin_tasks[0]
        self._place, self._chunk = _place(plan), plan.chunks[number]
        self._hasher = BlockHasher()
        self._last = self._chunk.first - 1
        self._size = self._buffered_bytes = self._buffered_rows = 0
        self._buffered: list[pa.RecordBatch] = []
        self._part = name_part(self._chunk.name)
        with _explain_write_errors(self._place):
            self._file = self._place.open_new(self._part)
        # Many small row groups are slow to read, large values in a dictionary slow to write.
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, "w"),
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
        self._last = require_ascending(self._plan, 0, rows["seq"].to_numpy(), self._last)
        if self._last > self._chunk.last:
            raise JsplanError(f"message {self._last:,} is not in the chunk {self._chunk.span}")
        self._hasher.add(rows["subject"], rows["headers"], rows["data"])
        self._buffered.append(to_file_schema(self._origin.domain, self._origin.stream, rows))
        self._buffered_rows += rows.num_rows
        self._buffered_bytes += rows.nbytes
        if self._buffered_rows >= ROW_GROUP_ROWS or self._buffered_bytes >= ROW_GROUP_BYTES:
            self._flush()
        self._size += rows["headers"].nbytes + rows["data"].nbytes
        return self._size

    def _flush(self) -> None:
        with _explain_write_errors(self._place):
            self._writer.write_table(pa.Table.from_batches(self._buffered, SCHEMA))
        self._buffered, self._buffered_bytes, self._buffered_rows = [], 0, 0

    def finish(self) -> ArchiveFile:
        """Write everything to disk, read it back, and name it, if no other process was first.

        Returns the entry of the file in the manifest. Raises RefusedError, and JsplanError where
        the file differs from what was written.
        """
        if self._buffered:
            self._flush()
        chunk, place = self._chunk, self._place
        with _explain_write_errors(place):
            self._writer.close()
            self._file.close()
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
                return file
        found = _describe_existing(place, chunk)
        if found is None:
            raise ApiError(f"another process deleted {place.locate(chunk.name)}")
        return found

    def close(self) -> None:
        """Close and delete the file below `_jsplan/`, also after an error."""
        with contextlib.suppress(OSError, pa.ArrowException):
            self._writer.close()
        with contextlib.suppress(OSError):
            self._file.close()
            self._place.delete(self._part)


def _describe_existing(place: ArchiveStore, chunk: Chunk) -> ArchiveFile | None:
    """Return the entry of the file of a chunk; None if there is none. Raises ArchiveError."""
    with _explain_write_errors(place):
        try:
            file = describe_file(place, chunk.name, chunk.name)
        except FileNotFoundError:
            return None
    if not replace(chunk, file=file).is_valid:
        raise ArchiveError(
            f"{place.locate(chunk.name)} has other messages than its name says", hint=DAMAGED_HINT
        )
    return file


@contextlib.contextmanager
def _explain_write_errors(place: ArchiveStore) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RefusedError(
            f"cannot write to {place}: {error.strerror or error}", hint=place.hint
        ) from None


def to_file_schema(domain: str, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert messages to the columns of a file."""
    table = to_table(domain, stream, rows)
    again = encode_headers(table["headers"])
    raw = pc.if_else(pc.equal(again, rows["headers"]), pa.scalar(None, BYTES), rows["headers"])
    stamps = pc.divide(rows["time"], 1000).cast(pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_arrays([*table.columns, stamps, raw], schema=SCHEMA)
