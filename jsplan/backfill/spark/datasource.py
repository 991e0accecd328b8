"""Spark format `jetstream`: readers and writers of streams, with Arrow.

Executors receive the classes by name, with options only. Each task connects by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    InputPartition,
)

from jsplan.backfill.spark.executors import plain_errors
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.sink import JetStreamWriter, make_stream_writer
from jsplan.backfill.spark.source_streams import (
    DEFAULT_PARTITIONS,
    HAS_FILTERS,
    SCHEMA,
    PushedBounds,
    RangePartition,
    Source,
    find_range,
    push_filters,
    read_partition,
    split_range,
    to_rows,
)
from jsplan.backfill.spark.stream_source import make_stream_reader
from jsplan.errors import UsageError
from jsplan.identity import KnownObject

if TYPE_CHECKING:
    from pyspark.sql.datasource import Filter
    from pyspark.sql.types import StructType


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

    @plain_errors()
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Create a reader of a range of each stream."""
        options = Options.parse(self.options)
        if not options.flag("pushdown"):
            return JetStreamReader(options)
        if not HAS_FILTERS:
            raise UsageError("option pushdown needs Spark 4.1", hint="Leave it out.")
        return PushdownReader(options)

    @plain_errors()
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: ARG002, N802
        """Create a streaming reader."""
        return make_stream_reader(Options.parse(self.options))

    @plain_errors()
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Create a writer of messages to a stream.

        Raises SourceError for `overwrite`, and for a frame without the required columns.
        """
        return JetStreamWriter(_parse_target(self.options, schema, overwrite=overwrite))

    @plain_errors()
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        """Create a writer that stores each row of a query once. Raises as `writer` does."""
        return make_stream_writer(_parse_target(self.options, schema, overwrite=overwrite))


def _parse_target(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> Options:
    """Return the options of a writer.

    Raises UsageError for them, for `overwrite`, and for a frame without subject and data.
    """
    if overwrite:
        raise UsageError("a stream cannot be overwritten", hint='Write with mode("append").')
    missing = [name for name in ("subject", "data") if name not in schema.fieldNames()]
    if missing:
        raise UsageError(
            f"the frame has no column {missing[0]}",
            hint="A message needs subject (text) and data (binary).",
        )
    options = Options.parse(given)
    if options["workspace"] is not None:
        raise UsageError("rows are written to one stream", hint="Use stream and url or context.")
    return options


class JetStreamReader(DataSourceReader):
    """Bounded read. It excludes messages that are stored while it runs."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pushed = PushedBounds(filters=options.texts("filterSubjects"))

    @plain_errors()
    def partitions(self) -> list[RangePartition]:
        """Return the ranges of the tasks, for the current streams."""
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        found: list[RangePartition] = []
        for source in Source(self._options).find().require_answers():
            with source.open(self._options) as (connection, info):
                first, last = find_range(connection, self._options, source, info, self._pushed)
            known = KnownObject(info.created, info.seen_at)
            found += split_range(source, first, last, count, known)
        return found if not self._pushed.is_empty else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task."""
        with plain_errors():
            for messages in read_partition(self._options, partition, self._pushed.filters):
                assert isinstance(partition, RangePartition)
                yield to_rows(partition.source, messages)


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


__all__ = ["SCHEMA", "JetStream"]
