"""Spark format `jetstream`: batch reader, streaming reader and batch writer, all with Arrow.

Executors receive the classes by name, with options only. Each task connects by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from jsplan.backfill.protocol.stream_info import fetch_stream_info, find_first_seq_at
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.pushdown import PushedBounds, push_filters
from jsplan.errors import RefusedError, UsageError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

#: Columns as Spark DDL. `time` is nanoseconds since 1970, which the timestamps of Spark cannot
#: represent.
SCHEMA = (
    "domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, "
    "headers ARRAY<STRUCT<name: STRING, value: STRING>>, data BINARY, origin STRING"
)
#: Default number of tasks of a read, and of messages of a streaming batch.
DEFAULT_PARTITIONS, DEFAULT_BATCH_MESSAGES = 2, 200_000


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
    """Range of sequences for one task, both ends included."""

    first: int
    last: int


def split_range(first: int, last: int, count: int) -> list[RangePartition]:
    """Split a range into at most `count` parts of similar length."""
    step = max(1, -(-(last - first + 1) // max(1, count)))
    return [
        RangePartition(start, min(last, start + step - 1)) for start in range(first, last + 1, step)
    ]


def read_partition(
    options: Options, part: RangePartition, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Read the messages of one task."""
    target = options.target()
    request = ReadRequest(
        options.api_prefix,
        options.stream,
        part.first,
        part.last,
        filters,
        options.flag("headersOnly"),
    )
    for batch in read(lambda: RawConnection(target), request):
        yield to_table(options.domain, options.stream, batch)


class JetStreamReader(DataSourceReader):
    """Bounded read. It excludes messages that are stored while it runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = PushedBounds(filters=options.filters)

    def partitions(self) -> list[InputPartition]:
        """Return the ranges of the tasks, for the current stream."""
        connection = RawConnection(self._options.target())
        try:
            first, last = self._bounds(connection)
        finally:
            connection.close()
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        return list(split_range(first, last, count)) if not self._pushed.is_empty else []

    def _bounds(self, connection: RawConnection) -> tuple[int, int]:
        options, pushed = self._options, self._pushed
        info = fetch_stream_info(connection, options.api_prefix, options.stream)
        firsts = [info.first, options.number("startSeq") or 0, pushed.first]
        lasts = [info.last, options.number("endSeq") or info.last, pushed.last]
        for time in (options.time("startTime"), pushed.since):
            firsts += (
                [find_first_seq_at(connection, options.api_prefix, options.stream, time)]
                if time is not None
                else []
            )
        for time in (options.time("endTime"), pushed.until):
            lasts += (
                [find_first_seq_at(connection, options.api_prefix, options.stream, time) - 1]
                if time is not None
                else []
            )
        return max(firsts), min(lasts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task. Without any range, Spark creates one empty task."""
        return (
            read_partition(self._options, partition, self._pushed.filters)
            if isinstance(partition, RangePartition)
            else iter(())
        )


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
    """Streaming read. An offset is the sequence of the next message."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._end: int | None = None

    def _next_sequence(self) -> int:
        connection = RawConnection(self._options.target())
        try:
            return (
                fetch_stream_info(connection, self._options.api_prefix, self._options.stream).last
                + 1
            )
        finally:
            connection.close()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Return the first message, or the position of `startSeq` or `startTime`."""
        options = self._options
        connection = RawConnection(options.target())
        try:
            time = options.time("startTime")
            first = (
                find_first_seq_at(connection, options.api_prefix, options.stream, time)
                if time is not None
                else 0
            )
            return {
                "seq": max(
                    first,
                    options.number("startSeq") or 0,
                    fetch_stream_info(connection, options.api_prefix, options.stream).first,
                )
            }
        finally:
            connection.close()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Stop at the current end of the stream."""
        self._end = self._next_sequence()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the maximum number of messages of a batch."""
        return ReadMaxRows(self._options.number("maxMessagesPerBatch") or DEFAULT_BATCH_MESSAGES)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Return the end of the next batch."""
        end = self._end if self._end is not None else self._next_sequence()
        if not isinstance(limit, ReadAllAvailable):
            most = getattr(limit, "max_rows", None) or DEFAULT_BATCH_MESSAGES
            end = min(end, start["seq"] + int(most))
        return {"seq": max(end, start["seq"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """Return the ranges of the tasks."""
        return list(
            split_range(
                start["seq"],
                end["seq"] - 1,
                self._options.number("partitions") or DEFAULT_PARTITIONS,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task. Without any range, Spark creates one empty task."""
        return (
            read_partition(self._options, partition, self._options.filters)
            if isinstance(partition, RangePartition)
            else iter(())
        )


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
