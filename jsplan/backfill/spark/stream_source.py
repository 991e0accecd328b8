"""Streaming reads: offsets that name their streams, and queries that end at a loss."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from importlib.util import find_spec
from typing import Any, Final, NotRequired, TypedDict

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.protocol.stream_info import StreamInfo, fetch_time
from jsplan.backfill.spark.executors import plain_errors
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.source_streams import (
    DEFAULT_PARTITIONS,
    PushedBounds,
    RangePartition,
    Source,
    SourceStream,
    find_range,
    read_partition,
    split_range,
    to_rows,
)
from jsplan.errors import OFFLINE_ERRORS, ConnectError, RefusedError, ServerRefusedError
from jsplan.identity import KnownObject, is_same_object
from jsplan.resources.error_codes import STREAM_NOT_FOUND
from jsplan.units import parse_instant

#: Before Spark 4.2 a batch has all that is there, and a call for the newest offset has no start.
HAS_LIMITS: Final = find_spec("pyspark.sql.streaming.datasource") is not None
_LOSS_HINT: Final = (
    "Start with a new checkpoint, or set failOnDataLoss to false to continue with what is there."
)
#: Default number of messages of each stream in a streaming batch.
DEFAULT_BATCH_MESSAGES: Final = 200_000


class Position(TypedDict):
    """The next message of a stream, and the identity of the stream when that was known.

    `seq` is a sequence, `created` and `seen` are the RFC 3339 times of `StreamInfo`. `end` and
    `end_time` are sequence and time of its newest message then: with another message there, the
    stream lost messages, and has given their sequences to new ones.
    """

    seq: int
    created: str
    seen: str
    end: NotRequired[int]
    end_time: NotRequired[str]


#: The positions by `SourceStream.key`, as a checkpoint keeps them.
Offset = dict[str, Position]


class StreamReader(DataSourceStreamReader):
    """Streaming read. With `failOnDataLoss` (default) a query ends where it lost messages.

    Those are messages that were deleted from the old end of a stream, or with the stream, before it
    read them. Single messages that are deleted between others are only not there, and so are values
    that a newer one of their subject replaces.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._fails = options.flag("failOnDataLoss", default=True)
        self._ends: dict[str, int] | None = None
        self._newest: Offset = {}

    @cached_property
    def _source(self) -> Source:
        """The streams of the query. Only the driver needs them."""
        return Source(self._options)

    @plain_errors()
    def initialOffset(self) -> Offset:  # noqa: N802 - Spark's name
        """Return the first message of each stream, or the position of the options."""
        return {source.key: _position(info, first) for source, info, first, _ in self._look({})}

    def _look(self, start: Offset) -> Iterator[tuple[SourceStream, StreamInfo, int, int]]:
        """Yield each stream that answers, its state, and its first and last sequence now.

        Raises RefusedError for messages that were lost since `start`. A domain of a workspace that
        does not answer is left out where Spark gives each call the start: its positions stay.
        """
        found = self._source.find()
        streams = found.streams if HAS_LIMITS else found.require_answers()
        for key in sorted(start.keys() - {source.key for source in streams}) if self._fails else ():
            if key.partition("/")[0] not in found.silent:
                raise _loss(key.partition("/")[2], "was deleted", int(start[key]["seq"]))
        for source in streams:
            try:
                with source.open(self._options) as (connection, info):
                    bounds = find_range(connection, self._options, source, info, PushedBounds())
                    if source.key in start:
                        self._require_readable(connection, source, start[source.key], info)
            except (*OFFLINE_ERRORS, ConnectError):
                if source.endpoint is None or not HAS_LIMITS:
                    raise
                continue
            yield source, info, *bounds

    def _require_readable(
        self, connection: RawConnection, source: SourceStream, known: Position, info: StreamInfo
    ) -> None:
        """Raise RefusedError for lost messages, with their range where that is known."""
        if not self._fails:
            return
        _require_nothing_lost(source.stream, known, info, self._options.number("startSeq"))
        end = int(known.get("end") or 0)
        if _went_back(connection, source, known, info):
            raise RefusedError(
                f"stream {source.stream} went back: its server lost messages up to sequence "
                f"{end:,}, and gives their sequences to new ones, which would not be read",
                hint=_LOSS_HINT,
            )

    def _advance(self, start: Offset, limit: int | None) -> Offset:
        """Return the end of the next batch, of `limit` messages of each stream at most."""
        end, self._newest = dict(start), dict(start)
        for source, info, first, last in self._look(start):
            known = start.get(source.key) or _position(info, first)
            same = _is_same(known, info)
            begin = int(known["seq"]) if same else 1
            self._newest[source.key] = _position(info, max(last + 1, begin))
            stop = last + 1 if self._ends is None else min(last + 1, self._ends.get(source.key, 0))
            stop = max(begin, stop if limit is None else min(stop, begin + limit))
            end[source.key] = known if same and stop == begin else _position(info, stop)
        return end

    def reportLatestOffset(self) -> Offset:  # noqa: N802
        """Return the ends of the streams, which the progress of a query has as `latestOffset`."""
        return self._newest

    @plain_errors()
    def partitions(self, start: Offset, end: Offset) -> list[RangePartition]:
        """Return the ranges of the tasks. A recreated stream is read from its beginning.

        Raises SourceError for lost messages, with their range.
        """
        count = self._options.number("partitions") or DEFAULT_PARTITIONS
        found: list[RangePartition] = []
        for key, after in sorted(end.items()):
            before = start.get(key)
            if before == after:
                continue
            source = self._source.get(key)
            first = self._find_first(source, before, after)
            known = KnownObject(after["created"], after["seen"])
            found += split_range(source, first, int(after["seq"]) - 1, count, known)
        return found

    def _find_first(self, source: SourceStream, before: Position | None, after: Position) -> int:
        """Return the first sequence of a batch; its end, if the stream of the batch is gone.

        Raises RefusedError for lost messages, ApiError and ConnectError.
        """
        begin, end = int(before["seq"]) if before is not None else 1, int(after["seq"])
        try:
            with source.open(self._options) as (connection, info):
                if before is None:
                    begin, _ = find_range(connection, self._options, source, info, PushedBounds())
                known: Position = before or {**after, "seq": begin}
                self._require_readable(connection, source, known, info)
        except ServerRefusedError as error:
            if error.err_code != STREAM_NOT_FOUND:
                raise
            if self._fails:
                raise _loss(source.stream, "was deleted", begin) from None
            return end
        if not _is_same(after, info):
            return end
        return begin if before is None or before["created"] == after["created"] else 1

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task. Raises SourceError for what expired meanwhile."""
        if isinstance(partition, RangePartition):
            with plain_errors():
                yield from self._read(partition)

    def _read(self, partition: RangePartition) -> Iterator[pa.RecordBatch]:
        source, filters = partition.source, self._options.texts("filterSubjects")
        missing = partition.first if filters else None
        position = partition.first
        for messages in read_partition(self._options, partition, filters):
            if missing is None:
                missing = _first_missing(messages["seq"].to_numpy(), position)
            position = int(messages["seq"][-1].as_py()) + 1
            yield to_rows(source, messages)
        if missing is None and position <= partition.last:
            missing = position
        if missing is None or not self._fails:
            return
        with source.open(self._options) as (_, info):
            pass
        if info.first > missing and not _supersedes(info):
            last = min(partition.last, info.first - 1)
            raise _loss(source.stream, f"begins at sequence {info.first:,}", missing, last)


def _position(info: StreamInfo, seq: int) -> Position:
    found: Position = {"seq": seq, "created": info.created, "seen": info.seen_at}
    return found | {"end": info.last, "end_time": info.last_time} if info.last_time else found


def _went_back(
    connection: RawConnection, source: SourceStream, known: Position, info: StreamInfo
) -> bool:
    """Check whether the newest message of then is another one now, or after the end."""
    end, time = int(known.get("end") or 0), known.get("end_time")
    if not time or not _is_same(known, info) or (info.last, info.last_time) == (end, time):
        return False
    if info.last < end:
        return True
    now = fetch_time(connection, source.api_prefix, source.stream, end)
    return bool(now) and parse_instant(now) != parse_instant(time)


def _is_same(known: Position, info: StreamInfo) -> bool:
    before = KnownObject(known["created"], known["seen"])
    return is_same_object(before, info.created, may_be_older=info.clustered)


def _first_missing(seqs: np.ndarray[Any, Any], position: int) -> int | None:
    """Return the first sequence from a position on that is not there, or None."""
    expected = np.arange(position, position + len(seqs))
    gaps = np.flatnonzero(seqs != expected)
    return int(expected[gaps[0]]) if len(gaps) else None


def _supersedes(info: StreamInfo) -> bool:
    """Check whether newer messages replace older ones, so that the old end of a stream moves."""
    config = info.config
    return int(config.get("max_msgs_per_subject") or 0) > 0 or bool(config.get("allow_rollup_hdrs"))


def _require_nothing_lost(
    stream: str, known: Position, info: StreamInfo, start_seq: int | None
) -> None:
    """Raise RefusedError for messages after a position that were deleted before they were read."""
    begin = int(known["seq"])
    if not _is_same(known, info):
        raise _loss(stream, "was recreated", begin)
    if info.first > begin and not _supersedes(info):
        raise _loss(stream, f"begins at sequence {info.first:,}", begin, info.first - 1)
    # a position is after the end only if the user wants that
    if info.last + 1 < begin != start_seq:
        raise _loss(stream, f"ends at sequence {info.last:,}", begin)


def _loss(stream: str, what: str, first: int, last: int | None = None) -> RefusedError:
    """Build the error for messages that could not be read."""
    until = f"from sequence {first:,} on" if last is None else f"{first:,} to {last:,}"
    return RefusedError(
        f"stream {stream} {what}. Its messages {until} were not read", hint=_LOSS_HINT
    )


def make_stream_reader(options: Options) -> StreamReader:
    """Return the reader for this release of Spark."""
    return _LimitedReader(options) if HAS_LIMITS else _UnlimitedReader(options)


class _UnlimitedReader(StreamReader):
    """A reader before Spark 4.2, which asks for the newest offset without a start or a limit."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._last: Offset = {}

    @plain_errors()
    def latestOffset(self) -> Offset:  # type: ignore[override]  # noqa: N802
        """Return the ends of the streams."""
        self._last = self._advance(self._last, None)
        return self._last


if HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )

    class _LimitedReader(StreamReader, SupportsTriggerAvailableNow):
        """A reader whose batches have limits."""

        @plain_errors()
        def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
            """Stop at the current ends of the streams."""
            found = self._look({})
            self._ends = {source.key: last + 1 for source, _, _, last in found}

        def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
            """Return the maximum number of messages of a batch, of each stream."""
            return ReadMaxRows(
                self._options.number("maxMessagesPerBatch") or DEFAULT_BATCH_MESSAGES
            )

        @plain_errors()
        def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: N802
            """Return the ends of the next batch."""
            most = getattr(limit, "max_rows", None) or DEFAULT_BATCH_MESSAGES
            return self._advance(start, None if isinstance(limit, ReadAllAvailable) else int(most))
