"""Writers of messages: of a frame, and of a streaming query, which stores each row once."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import datasource
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamWriter,
    WriterCommitMessage,
)

from jsplan.backfill.message_schema import (
    HEADERS_TYPE,
    contains_bytes,
    encode_headers,
    neutralize_control_headers,
)
from jsplan.backfill.protocol import RawConnection, publish, read
from jsplan.backfill.protocol.columns import find_invalid_row
from jsplan.backfill.protocol.frames import BYTES, append_header_lines, concat_rows
from jsplan.backfill.protocol.publisher import Destination
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.spark.executors import plain_errors
from jsplan.backfill.spark.options import Options
from jsplan.backfill.tasks.hashes import encode_canonical
from jsplan.errors import RefusedError, UsageError

#: Before Spark 4.1 the rows of a streaming query come one by one.
HAS_ARROW: Final = hasattr(datasource, "DataSourceStreamArrowWriter")

#: Rows that become one batch where Spark gives them one by one.
ROWS_PER_BATCH: Final = 10_000
#: Messages at the end of a stream that are searched first for those of the batch before. Each next
#: search is that much larger.
FIRST_SEARCH: Final = 2_000
SEARCH_GROWTH: Final = 8
_ID_HEADER: Final = b"Nats-Msg-Id: "
Columns = tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]


def _to_columns(options: Options, batch: pa.RecordBatch) -> Columns:
    """Return rows as the columns of messages. Raises RefusedError for a row that is no message."""
    subject = batch["subject"].cast(pa.string()).view(BYTES)
    fields = batch["headers"] if "headers" in batch.schema.names else None
    if (found := find_invalid_row(subject, fields)) is not None:
        raise RefusedError(f"row {found[0] + 1:,} of a batch has {found[1]}")
    headers = (
        neutralize_control_headers(encode_headers(fields))
        if fields is not None
        else pa.repeat(pa.scalar(b"", BYTES), batch.num_rows)
    )
    if prefix := options["subjectPrefix"]:
        subject = concat_rows(prefix.encode(), subject)
    return subject, headers, batch["data"].cast(BYTES).fill_null(b"")


class JetStreamWriter(DataSourceArrowWriter):
    """Writer that publishes each row and waits for its acknowledgement.

    Headers that servers act on are renamed as in a backfill. A repeated task publishes again. With
    `dedupe` = `origin` each message has its origin as `Nats-Msg-Id`, so the server drops repeated
    ones within the duplicate window of the stream. For an exact copy, use `jsplan backfill`.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        if (options["dedupe"] or "none") not in ("none", "origin"):
            raise UsageError(f"option dedupe is {options['dedupe']!r}, not none or origin")
        self._deduplicates = options["dedupe"] == "origin"

    @plain_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task.

        Raises SourceError for a row that is no message, for another stream or domain than that of
        the options, and for duplicates without `dedupe`.
        """
        with contextlib.closing(self._options.connect()) as connection:
            publish(
                connection,
                (self._with_origin(batch) for batch in iterator if batch.num_rows),
                destination=Destination(self._options.stream, self._options.domain),
                deduplicates=self._deduplicates,
            )
        return WriterCommitMessage()

    def _with_origin(self, batch: pa.RecordBatch) -> Columns:
        subject, headers, data = _to_columns(self._options, batch)
        if self._deduplicates:
            headers = append_header_lines(headers, _ID_HEADER, _origins(batch), b"\r\n")
        return subject, headers, data


def _origins(batch: pa.RecordBatch) -> pa.BinaryArray:
    if "origin" not in batch.schema.names:
        raise UsageError("dedupe by origin needs the column origin")
    origins = batch["origin"].cast(pa.string()).view(BYTES)
    if pc.any(pc.fill_null(pc.match_substring_regex(origins, r"^$|[\r\n]"), True)).as_py():
        raise RefusedError("a row has no origin, or one with a line break")
    return origins


# --- streaming queries ----------------------------------------------------------------------------


class _Task(NamedTuple):
    """A task of a streaming query: the id of the query, the number of its batch, its partition."""

    query: str
    batch: int
    partition: int

    @property
    def prefix(self) -> bytes:
        """The begin of the `Nats-Msg-Id` of each row of this task."""
        return f"{self.query}.{self.batch}.{self.partition}.".encode()


class StreamSink:
    """Writer of a streaming query: each row is stored once, also after a restart.

    `Nats-Msg-Id` names the query (its checkpoint), the batch, the partition and the row. A task
    first looks for what an earlier run of it has stored: it searches the stream backward to the
    batch before. The server drops what a run that is still alive stores at the same time, within
    the duplicate window of the stream, so the stream must have one.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        if options["dedupe"] is not None:
            raise UsageError("option dedupe is for frames: a streaming query stores each row once")

    @plain_errors()
    def store(self, batches: Iterable[pa.RecordBatch]) -> WriterCommitMessage:
        """Store the rows of one task that are not stored yet. Raises SourceError."""
        task, seen = _current_task(), Counter[bytes]()
        with contextlib.closing(self._options.connect()) as connection:
            stored = self._find_stored(connection, task)
            rows = (_to_columns(self._options, batch) for batch in batches if batch.num_rows)
            new = (_new_rows(task, columns, seen, stored) for columns in rows)
            publish(
                connection,
                (columns for columns in new if len(columns[0])),
                destination=Destination(self._options.stream, self._options.domain),
                deduplicates=True,
            )
        return WriterCommitMessage()

    def _find_stored(self, connection: RawConnection, task: _Task) -> frozenset[bytes]:
        """Return the ids of the messages of this task that the stream has."""
        options = self._options
        info = fetch_stream_info(connection, options.api_prefix, options.stream)
        if not info.config.get("duplicate_window"):
            raise RefusedError(
                f"stream {options.stream} has no duplicate window, so a repeated task could store "
                "its rows twice",
                hint="Set duplicate_window, 2m for instance.",
            )
        if info.config.get("retention", "limits") != "limits":
            raise RefusedError(
                f"stream {options.stream} has {info.config['retention']} retention: its consumers "
                "delete messages, so a repeated task could store its rows twice",
                hint="Write into a stream with limits retention, and source that.",
            )
        found, end, size = set[bytes](), info.last, FIRST_SEARCH
        while end >= max(info.first, 1) and info.messages:
            begin = max(info.first, end - size + 1, 1)
            request = ReadRequest(options.api_prefix, options.stream, begin, end, headers_only=True)
            earlier = False
            for batch in read(options.connect, request):
                ids, is_earlier = _find_ids(batch["headers"], task)
                found.update(ids)
                earlier |= is_earlier
            if earlier:
                break
            end, size = begin - 1, size * SEARCH_GROWTH
        return frozenset(found)


def _current_task() -> _Task:
    """Return the task that runs in this process, from the properties that Spark gives it."""
    from pyspark import TaskContext  # noqa: PLC0415 - only in a task

    context = TaskContext.get()
    assert context is not None, "Spark runs writers in tasks"
    query = context.getLocalProperty("sql.streaming.queryId")
    batch = context.getLocalProperty("streaming.sql.batchId")
    if query is None or batch is None:
        raise RefusedError("Spark does not say which query and batch this task belongs to")
    return _Task(query.replace("-", "")[:16], int(batch), context.partitionId())


def _find_ids(headers: pa.BinaryArray, task: _Task) -> tuple[list[bytes], bool]:
    """Return the ids of a task among headers, and whether a batch before it is there."""
    if not contains_bytes(headers, _ID_HEADER + task.query.encode()):
        return [], False
    pattern = rf"\r\nNats-Msg-Id: (?P<id>{task.query}\.(?P<batch>[0-9]{{1,18}})\.[^\r]*)"
    found = pc.extract_regex(headers, pattern=pattern).drop_null()
    ids = pc.struct_field(found, "id")
    batches = pc.struct_field(found, "batch").view(pa.string()).cast(pa.int64())
    own = ids.filter(pc.starts_with(ids, task.prefix)).to_pylist()
    return own, bool(pc.any(pc.less(batches, task.batch)).as_py())


def _new_rows(
    task: _Task, columns: Columns, seen: Counter[bytes], stored: frozenset[bytes]
) -> Columns:
    """Return the rows that are not stored yet, with their ids.

    The id of a row is made of its content, and of how many equal rows the task had before: Spark
    may give a repeated task its rows in another order.
    """
    ids = []
    for text in encode_canonical(*columns).to_pylist():
        digest = hashlib.blake2b(text, digest_size=10).hexdigest().encode()
        ids.append(task.prefix + digest + (b".%d" % seen[digest] if seen[digest] else b""))
        seen[digest] += 1
    subject, headers, data = columns
    lines = append_header_lines(headers, _ID_HEADER, pa.array(ids, BYTES), b"\r\n")
    mask = pa.array(np.fromiter((one not in stored for one in ids), dtype=bool, count=len(ids)))
    new = [column.filter(mask) for column in (subject, lines, data)]
    return new[0], new[1], new[2]


def make_stream_writer(options: Options) -> DataSourceStreamWriter:
    """Return the writer for this release of Spark."""
    return _ArrowWriter(options) if HAS_ARROW else _RowWriter(options)


class _RowWriter(DataSourceStreamWriter):
    """Writer before Spark 4.1."""

    def __init__(self, options: Options) -> None:
        self._sink = StreamSink(options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        """Store the rows of one task."""
        return self._sink.store(_to_batches(iterator))


def _to_batches(rows: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Return rows of Spark in batches, with the columns that a message has."""
    kept: list[dict[str, Any]] = []
    for row in rows:
        kept.append(row.asDict(recursive=True))
        if len(kept) == ROWS_PER_BATCH:
            yield _to_batch(kept)
            kept = []
    if kept:
        yield _to_batch(kept)


def _to_batch(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    types = {"subject": pa.string(), "headers": HEADERS_TYPE, "data": pa.binary()}
    names = [name for name in types if name in rows[0]]
    columns = [pa.array([row[name] for row in rows], types[name]) for name in names]
    return pa.RecordBatch.from_arrays(columns, names=names)


if HAS_ARROW:

    class _ArrowWriter(datasource.DataSourceStreamArrowWriter):
        """Writer of Arrow batches."""

        def __init__(self, options: Options) -> None:
            self._sink = StreamSink(options)

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Store the rows of one task."""
            return self._sink.store(iterator)
