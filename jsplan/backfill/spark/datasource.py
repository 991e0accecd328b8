"""The format `jetstream` of Spark: batch reader, streaming reader, batch writer, Arrow batches end to end.

The classes travel to executors by name and hold options only; each task connects for itself. How messages are read and
written is left to `wire`, what the columns are to `columns`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
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

from jsplan.backfill.message_schema import encode_headers, to_table
from jsplan.backfill.protocol import RawConnection, publish, read
from jsplan.backfill.protocol.frames import BYTES, append_header_lines, concat_rows
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info, find_first_seq_at
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.pushdown import PushedBounds, push_filters
from jsplan.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType

#: The columns as Spark writes them; `time` is nanoseconds since 1970, which Spark's own timestamps cannot hold.
SCHEMA = (
    "domain STRING, stream STRING, seq BIGINT, time BIGINT, subject STRING, headers ARRAY<STRUCT<name: STRING, value: STRING>>, "
    "data BINARY, origin STRING"
)
#: Into how many tasks a read is cut where nothing is said, and how many messages a streaming batch has at most.
DEFAULT_PARTITIONS, DEFAULT_BATCH_MESSAGES = 2, 200_000


class JetStream(DataSource):
    """Streams as tables: one row per message, in the columns of `SCHEMA`. `SPEC` of the options: docs/how-to/spark.md."""

    @classmethod
    def name(cls) -> str:
        """As in `spark.read.format("jetstream")`."""
        return "jetstream"

    def schema(self) -> str:
        """The columns."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002 - Spark's signature; the columns are fixed
        """A range of a stream."""
        options = Options.parse(self.options)
        return PushdownReader(options) if options.flag("pushdown") else JetStreamReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """A stream and what it gets."""
        return JetStreamStreamReader(Options.parse(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Messages to be stored in a stream. Raises UsageError for `overwrite` and for a frame without the columns it needs."""
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
    """A range of sequences for one task, both ends included."""

    first: int
    last: int


def split_range(first: int, last: int, count: int) -> list[RangePartition]:
    """The range cut into at most `count` parts of about equal length."""
    step = max(1, -(-(last - first + 1) // max(1, count)))
    return [
        RangePartition(start, min(last, start + step - 1)) for start in range(first, last + 1, step)
    ]


def read_partition(
    options: Options, piece: RangePartition, filters: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """What one task reads."""
    target = options.target()
    what = ReadRequest(
        options.api_prefix,
        options.stream,
        piece.first,
        piece.last,
        filters,
        options.flag("headersOnly"),
    )
    for batch in read(lambda: RawConnection(target), what):
        yield to_table(options.domain, options.stream, batch)


class JetStreamReader(DataSourceReader):
    """A bounded read. What is stored while it runs is not part of it."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = PushedBounds(filters=options.filters)

    def partitions(self) -> list[InputPartition]:
        """The ranges of the tasks, as the stream is now."""
        wire = RawConnection(self._options.target())
        try:
            first, last = self._bounds(wire)
        finally:
            wire.close()
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        return list(split_range(first, last, count)) if not self._pushed.is_empty else []

    def _bounds(self, wire: RawConnection) -> tuple[int, int]:
        options, pushed = self._options, self._pushed
        facts = fetch_stream_info(wire, options.api_prefix, options.stream)
        firsts = [facts.first, options.number("startSeq") or 0, pushed.first]
        lasts = [facts.last, options.number("endSeq") or facts.last, pushed.last]
        for time in (options.time("startTime"), pushed.since):
            firsts += (
                [find_first_seq_at(wire, options.api_prefix, options.stream, time)]
                if time is not None
                else []
            )
        for time in (options.time("endTime"), pushed.until):
            lasts += (
                [find_first_seq_at(wire, options.api_prefix, options.stream, time) - 1]
                if time is not None
                else []
            )
        return max(firsts), min(lasts)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's messages. Where there is no range at all, Spark makes one task without one."""
        return (
            read_partition(self._options, partition, self._pushed.filters)
            if isinstance(partition, RangePartition)
            else iter(())
        )


class PushdownReader(JetStreamReader):
    """A read that Spark's filters narrow.

    Spark 4 keeps what was pushed down with the frame that `load()` returned: every later query of that frame, with other
    filters or none, would miss rows. So it has to be asked for, for frames that are used once.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802 - Spark's name
        """Take what narrows the range or the subjects; what is not exactly expressed by that, Spark filters again."""
        self._pushed, left = push_filters(self._pushed, filters)
        return left


class JetStreamStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream as it grows. An offset is the sequence of the next message to read."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._end: int | None = None

    def _next_sequence(self) -> int:
        wire = RawConnection(self._options.target())
        try:
            return fetch_stream_info(wire, self._options.api_prefix, self._options.stream).last + 1
        finally:
            wire.close()

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The first message there is, or what `startSeq` or `startTime` say."""
        options = self._options
        wire = RawConnection(options.target())
        try:
            time = options.time("startTime")
            first = (
                find_first_seq_at(wire, options.api_prefix, options.stream, time)
                if time is not None
                else 0
            )
            return {
                "seq": max(
                    first,
                    options.number("startSeq") or 0,
                    fetch_stream_info(wire, options.api_prefix, options.stream).first,
                )
            }
        finally:
            wire.close()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """From now on nothing newer is read."""
        self._end = self._next_sequence()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """How many messages one batch has at most."""
        return ReadMaxRows(self._options.number("maxMessagesPerBatch") or DEFAULT_BATCH_MESSAGES)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Up to where the next batch goes."""
        end = self._end if self._end is not None else self._next_sequence()
        if not isinstance(limit, ReadAllAvailable):
            most = getattr(limit, "max_rows", None) or DEFAULT_BATCH_MESSAGES
            end = min(end, start["seq"] + int(most))
        return {"seq": max(end, start["seq"])}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        """The ranges of the tasks."""
        return list(
            split_range(
                start["seq"],
                end["seq"] - 1,
                self._options.number("partitions") or DEFAULT_PARTITIONS,
            )
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """One task's messages. Where there is no range at all, Spark makes one task without one."""
        return (
            read_partition(self._options, partition, self._options.filters)
            if isinstance(partition, RangePartition)
            else iter(())
        )


@dataclass
class WriteResult(WriterCommitMessage):
    """What one task stored, and how much of it the server knew already."""

    messages: int
    duplicates: int


class JetStreamWriter(DataSourceArrowWriter):
    """Publishes each row and waits for its acknowledgement. A task that Spark repeats publishes again.

    With `dedupe` = `origin` each message carries its origin as `Nats-Msg-Id`, so that the server drops what it stored within
    the stream's duplicate window. A copy that is exact whatever happens is what `jsplan backfill` makes.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        if (options["dedupe"] or "none") not in ("none", "origin"):
            raise UsageError(f"option dedupe is {options['dedupe']!r}, not none or origin")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriteResult:
        """One task's rows."""
        wire = RawConnection(self._options.target())
        try:
            return WriteResult(
                *publish(
                    wire, (self._to_message_columns(batch) for batch in iterator if batch.num_rows)
                )
            )
        finally:
            wire.close()

    def _to_message_columns(
        self, batch: pa.RecordBatch
    ) -> tuple[pa.BinaryArray, pa.BinaryArray, pa.BinaryArray]:
        names = set(batch.schema.names)
        subject = batch["subject"].cast(pa.string()).view(BYTES)
        empty = pa.repeat(pa.scalar(b"", BYTES), batch.num_rows)
        headers = encode_headers(batch["headers"]) if "headers" in names else empty
        if (self._options["dedupe"] or "none") == "origin":
            if "origin" not in names:
                raise UsageError("dedupe by origin needs the column origin")
            headers = append_header_lines(
                headers, b"Nats-Msg-Id: ", batch["origin"].cast(pa.string()).view(BYTES), b"\r\n"
            )
        prefix = (self._options["subjectPrefix"] or "").encode()
        data = batch["data"].cast(BYTES).fill_null(b"")
        return (concat_rows(prefix, subject) if prefix else subject), headers, data


__all__ = ["SCHEMA", "JetStream", "split_range"]
