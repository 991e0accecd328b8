"""Ranges of streams as tasks read them, and their messages as rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from jsplan.backfill.message_schema import to_table
from jsplan.backfill.protocol import RawConnection, read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import StreamInfo, find_first_seq_at
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.pushdown import PushedBounds
from jsplan.backfill.spark.source_streams import SourceStream
from jsplan.identity import KnownObject
from jsplan.planning.backfill.model import SeqRange

#: Columns as Spark DDL. `time` is nanoseconds since 1970, of which `timestamp` has microseconds.
SCHEMA: Final = (
    "domain STRING, stream STRING, seq BIGINT, time BIGINT, timestamp TIMESTAMP, subject STRING, "
    "headers ARRAY<STRUCT<name: STRING, value: STRING>>, data BINARY, origin STRING"
)
_TIMESTAMP: Final = pa.timestamp("us", "UTC")
#: Default number of tasks of a read.
DEFAULT_PARTITIONS: Final = 2


@dataclass
class RangePartition(InputPartition):
    """Range of sequences of one stream for one task, both ends included."""

    source: SourceStream
    first: int
    last: int
    known: KnownObject


def split_range(
    source: SourceStream, first: int, last: int, count: int, known: KnownObject
) -> list[RangePartition]:
    """Split a range into at most `count` parts of similar length."""
    span = SeqRange(first, last)
    parts = span.split(max(1, -(-span.size // max(1, count))))
    return [RangePartition(source, *part, known) for part in parts]


def find_range(
    connection: RawConnection,
    options: Options,
    source: SourceStream,
    info: StreamInfo,
    pushed: PushedBounds,
) -> tuple[int, int]:
    """Return the first and last sequence that the options and pushed filters select."""

    def find(time: int) -> int:
        return find_first_seq_at(connection, source.api_prefix, source.stream, time)

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
    """Read the messages of one task, as `MESSAGE_SCHEMA` has them.

    Without any range, Spark creates one empty task.
    """
    if not isinstance(part, RangePartition):
        return
    source, headers_only = part.source, options.flag("headersOnly")
    request = ReadRequest(
        source.api_prefix,
        source.stream,
        part.first,
        part.last,
        filters,
        headers_only,
        part.known,
    )
    for batch in read(lambda: source.connect(options), request):
        yield drop_size_header(batch) if headers_only else batch


def to_rows(source: SourceStream, messages: pa.RecordBatch) -> pa.RecordBatch:
    """Return messages in the columns of `SCHEMA`."""
    rows = to_table(source.domain, source.stream, messages)
    microseconds = pc.divide(rows["time"], 1_000).cast(pa.int64()).view(_TIMESTAMP)
    return rows.add_column(rows.schema.get_field_index("subject"), "timestamp", microseconds)


def drop_size_header(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Drop the last header, with the size of the payload, which servers add to headers alone."""
    headers = pc.replace_substring_regex(
        rows["headers"], pattern=r"\r\nNats-Msg-Size: [0-9]+\r\n\r\n$", replacement="\r\n\r\n"
    )
    return rows.set_column(rows.schema.get_field_index("headers"), "headers", headers)
