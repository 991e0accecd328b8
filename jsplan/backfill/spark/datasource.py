"""Spark format `jetstream`: batch reader, streaming reader and batch writer, all with Arrow.

Executors receive the classes by name, with options only. Each task connects by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from jsplan.backfill.message_schema import (
    encode_headers,
    neutralize_control_headers,
    to_table,
)
from jsplan.backfill.protocol import RawConnection, publish, read
from jsplan.backfill.protocol.frames import BYTES, append_header_lines, concat_rows
from jsplan.backfill.protocol.publisher import Destination
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.row_check import find_invalid_row
from jsplan.backfill.protocol.stream_info import (
    StreamInfo,
    fetch_stream_info,
    find_first_seq_at,
)
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.pushdown import PushedBounds, push_filters
from jsplan.errors import RefusedError, UsageError
from jsplan.identity import KnownObject, is_same_object

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

#: Columns as Spark DDL. `time` is nanoseconds since 1970, which the timestamps of Spark cannot
#: represent.
SCHEMA = (
    "domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, "
    "headers ARRAY<STRUCT<name: STRING, value: STRING>>, data BINARY, origin STRING"
)
#: A position in a stream, as a checkpoint keeps it.
Offset = dict[str, int | str]
#: Default number of tasks of a read, and of messages of a streaming batch.
DEFAULT_PARTITIONS, DEFAULT_BATCH_MESSAGES = 2, 200_000
RECREATED: Final = "was recreated"


class JetStream(DataSource):
    """Data source for streams: one row per message, in the columns of `SCHEMA`.

    The options are in docs/how-to/spark.md.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for `spark.read.format("jetstream")`."""
        return "jetstream"

    def schema(self) -> str:
        """Return the columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Create a reader of a range of a stream."""
        options = Options.parse(self.options)
        return PushdownReader(options) if options.flag("pushdown") else JetStreamReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Create a streaming reader of a stream."""
        return JetStreamStreamReader(Options.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Create a writer of messages to a stream.

        Raises UsageError for `overwrite`, and for a frame without the required columns.
        """
        if overwrite:
            raise UsageError("a stream cannot be overwritten", hint='Write with mode("append").')
        missing = [name for name in ("subject", "data") if name not in schema.fieldNames()]
        if missing:
            raise UsageError(
                f"the frame has no column {missing[0]}",
                hint="A message needs subject (text) and data (binary).",
            )
        return JetStreamWriter(Options.parse(self.options))


@dataclass
class RangePartition(InputPartition):
    """Range of sequences of one stream for one task, both ends included."""

    first: int
    last: int
    known: KnownObject


def split_range(first: int, last: int, count: int, known: KnownObject) -> list[RangePartition]:
    """Split a range into at most `count` parts of similar length."""
    step = max(1, -(-(last - first + 1) // max(1, count)))
    return [
        RangePartition(start, min(last, start + step - 1), known)
        for start in range(first, last + 1, step)
    ]


def find_range(
    connection: RawConnection, options: Options, info: StreamInfo, pushed: PushedBounds
) -> tuple[int, int]:
    """Return the first and last sequence that the options and pushed filters select."""

    def find(time: int) -> int:
        return find_first_seq_at(connection, options.api_prefix, options.stream, time)

    firsts = [1, info.first, options.number("startSeq") or 0, pushed.first]
    firsts += [find(time) for time in (options.time("startTime"), pushed.since) if time is not None]
    end = options.number("endSeq")
    lasts = [info.last, info.last if end is None else end, pushed.last]
    lasts += [
        find(time) - 1 for time in (options.time("endTime"), pushed.until) if time is not None
    ]
    return max(firsts), min(lasts)


def read_partition(
    options: Options, part: InputPartition, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Read the messages of one task. Without any range, Spark creates one empty task."""
    if not isinstance(part, RangePartition):
        return
    target, headers_only = options.target(), options.flag("headersOnly")
    request = ReadRequest(
        options.api_prefix,
        options.stream,
        part.first,
        part.last,
        filters,
        headers_only,
        part.known,
    )
    for batch in read(lambda: RawConnection(target), request):
        rows = drop_size_header(batch) if headers_only else batch
        yield to_table(options.domain, options.stream, rows)


def drop_size_header(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the last header, with the size of the payload, which servers add to headers alone."""
    headers = pc.replace_substring_regex(
        rows["headers"], pattern=r"\r\nNats-Msg-Size: [0-9]+\r\n\r\n$", replacement="\r\n\r\n"
    )
    return rows.set_column(rows.schema.get_field_index("headers"), "headers", headers)


class JetStreamReader(DataSourceReader):
    """Bounded read. It excludes messages that are stored while it runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = PushedBounds(filters=options.filters)

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of the tasks, for the current stream."""
        with open_stream(self._options) as (connection, info):
            first, last = find_range(connection, self._options, info, self._pushed)
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        known = KnownObject(info.created, info.seen_at)
        return list(split_range(first, last, count, known)) if not self._pushed.is_empty else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task."""
        return read_partition(self._options, partition, self._pushed.filters)


class PushdownReader(JetStreamReader):
    """Bounded read that the filters of Spark narrow.

    Spark 4 stores pushed filters in the frame that `load()` returned: every later query of that
    frame, with other filters or none, would miss rows. The option `pushdown` is therefore opt-in,
    for frames that are used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Use the filters that narrow range or subjects; return those that Spark must apply."""
        self._pushed, remaining = push_filters(self._pushed, filters)
        return remaining


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streaming read. An offset is the sequence of the next message, and of which stream.

    `created` and `seen` are those of the stream when the offset was made. With `failOnDataLoss`
    (default) a query ends with an error where messages were deleted before it read them.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._end: int | None = None

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the first message, or the position of `startSeq` or `startTime`."""
        with open_stream(self._options) as (connection, info):
            first, _ = find_range(connection, self._options, info, PushedBounds())
        return {"seq": first, "created": info.created, "seen": info.seen_at}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the current end of the stream."""
        with open_stream(self._options) as (_, info):
            self._end = info.last + 1

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of messages of a batch."""
        return ReadMaxRows(self._options.number("maxMessagesPerBatch") or DEFAULT_BATCH_MESSAGES)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
        """Return the end of the next batch. Raises RefusedError for lost messages."""
        with open_stream(self._options) as (connection, info):
            _, last = find_range(connection, self._options, info, PushedBounds())
        lost, begin = find_loss(self._options, start, info), int(start["seq"])
        if lost and self._options.flag("failOnDataLoss", default=True):
            raise RefusedError(
                f"stream {self._options.stream} {lost}. Its messages from sequence {begin:,} on "
                "were not read",
                hint="Start with a new checkpoint, or set failOnDataLoss to false to continue with "
                "what is there.",
            )
        created = info.created if lost == RECREATED else str(start["created"])
        begin = 1 if lost == RECREATED else begin
        end = min(last + 1, self._end if self._end is not None else last + 1)
        if not isinstance(limit, ReadAllAvailable):
            end = min(end, begin + int(getattr(limit, "max_rows", None) or DEFAULT_BATCH_MESSAGES))
        if end <= begin and created == start["created"]:
            return start
        return {"seq": max(end, begin), "created": created, "seen": info.seen_at}

    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Return the ranges of the tasks. A recreated stream is read from its beginning."""
        first = int(start["seq"]) if start["created"] == end["created"] else 1
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        known = KnownObject(str(end["created"]), str(end["seen"]))
        return list(split_range(first, int(end["seq"]) - 1, count, known))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task."""
        return read_partition(self._options, partition, self._options.filters)


def find_loss(options: Options, start: Offset, info: StreamInfo) -> str:
    """Return what deleted messages after an offset before they were read; empty for nothing."""
    known, begin = KnownObject(str(start["created"]), str(start["seen"])), int(start["seq"])
    if not is_same_object(known, info.created, may_be_older=info.clustered):
        return RECREATED
    if info.first > begin:
        return f"begins at sequence {info.first:,}"
    # an offset is after the end only if the user wants that
    is_after_end = info.last + 1 < begin != options.number("startSeq")
    return f"ends at sequence {info.last:,}" if is_after_end else ""


@contextlib.contextmanager
def open_stream(options: Options) -> Iterator[tuple[RawConnection, StreamInfo]]:
    """Open a connection, and fetch the state of the stream. Raises ApiError and ConnectError."""
    connection = RawConnection(options.target())
    try:
        yield connection, fetch_stream_info(connection, options.api_prefix, options.stream)
    finally:
        connection.close()


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

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task.

        Raises RefusedError for a row that is no message, for another stream or domain than that of
        the options, and for duplicates without `dedupe`.
        """
        connection = RawConnection(self._options.target())
        try:
            publish(
                connection,
                (self._to_message_columns(batch) for batch in iterator if batch.num_rows),
                destination=Destination(self._options.stream, self._options.domain),
                deduplicates=self._deduplicates,
            )
        finally:
            connection.close()
        return WriterCommitMessage()

    def _to_message_columns(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]:
        names = set(batch.schema.names)
        subject = batch["subject"].cast(pa.string()).view(BYTES)
        fields = batch["headers"] if "headers" in names else None
        if (found := find_invalid_row(subject, fields)) is not None:
            raise RefusedError(f"row {found[0] + 1:,} of a batch has {found[1]}")
        empty = pa.repeat(pa.scalar(b"", BYTES), batch.num_rows)
        headers = (
            neutralize_control_headers(encode_headers(fields)) if fields is not None else empty
        )
        if self._deduplicates:
            headers = append_header_lines(headers, b"Nats-Msg-Id: ", self._origins(batch), b"\r\n")
        prefix = (self._options["subjectPrefix"] or "").encode()
        data = batch["data"].cast(BYTES).fill_null(b"")
        return (concat_rows(prefix, subject) if prefix else subject), headers, data

    def _origins(self, batch: pa.RecordBatch) -> pa.BinaryArray:
        if "origin" not in batch.schema.names:
            raise UsageError("dedupe by origin needs the column origin")
        origins = batch["origin"].cast(pa.string()).view(BYTES)
        if pc.any(pc.fill_null(pc.match_substring_regex(origins, r"^$|[\r\n]"), True)).as_py():
            raise RefusedError("a row has no origin, or one with a line break")
        return origins


__all__ = ["SCHEMA", "JetStream", "split_range"]
