"""The streams that a read has as one table, their ranges, and their messages as rows.

Filters of Spark are pushed down to the read of a stream, as far as the server can apply them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace
from pyspark.sql import datasource
from pyspark.sql.datasource import InputPartition

from jsplan.address import STAGING_PREFIX, Address, matches, matches_any
from jsplan.backfill.message_schema import to_table
from jsplan.backfill.protocol import RawConnection, read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import (
    StreamInfo,
    fetch_stream_info,
    find_first_seq_at,
    request_api,
)
from jsplan.backfill.spark.executors import SourceError
from jsplan.backfill.spark.options import Options
from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.config import load
from jsplan.config.model import Domain, LoadOptions, Workspace
from jsplan.errors import ApiError, ConnectError
from jsplan.identity import KnownObject
from jsplan.jetstream.contexts import resolve_settings
from jsplan.planning.backfill.model import SeqRange

if hasattr(datasource, "Filter"):
    from pyspark.sql.datasource import (
        EqualTo,
        Filter,
        GreaterThan,
        GreaterThanOrEqual,
        In,
        IsNotNull,
        LessThan,
        LessThanOrEqual,
        StringStartsWith,
    )

#: Maximum clock difference (ns) of successive leaders. Times of a stream may go back by it.
MAX_CLOCK_SKEW: Final = 300 * 1_000_000_000
MAX_BOUND: Final = (1 << 63) - 1
#: Before Spark 4.1 filters are not pushed down.
HAS_FILTERS: Final = hasattr(datasource, "Filter")


@dataclass(frozen=True)
class SourceStream:
    """One stream, as the driver and each executor reach it.

    `key` is its name in an offset: DOMAIN/STREAM, with the domain of the files or of the options.
    `domain` is its JetStream domain, as the column has it; empty: none. Without an `endpoint`, the
    options of the read say how to connect.
    """

    key: str
    domain: str
    stream: str
    api_prefix: str
    endpoint: Endpoint | None = None

    @contextlib.contextmanager
    def open(self, options: Options) -> Iterator[tuple[RawConnection, StreamInfo]]:
        """Open a connection, and fetch the state. Raises ApiError, ConnectError and UsageError."""
        with contextlib.closing(self.connect(options)) as connection:
            yield connection, fetch_stream_info(connection, self.api_prefix, self.stream)

    def connect(self, options: Options) -> RawConnection:
        """Open a connection. Raises ConnectError and UsageError."""
        return self.endpoint.open() if self.endpoint is not None else options.connect()


class SourceStreams(NamedTuple):
    """The streams of a read in the order of their names, and the domains that do not answer."""

    streams: list[SourceStream]
    silent: dict[str, str]

    def require_answers(self) -> list[SourceStream]:
        """Return the streams. Raises SourceError for a domain that does not answer."""
        for domain, reason in self.silent.items():
            raise SourceError(f"domain {domain} cannot be read: {reason}")
        return self.streams


class Source:
    """The stream of the options, or the streams of a workspace that `streams` selects.

    The files of the workspace are read once. Raises ConfigError, UsageError and ConnectError.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._domains: dict[str, tuple[Domain, Endpoint]] = {}
        if options["workspace"] is not None:
            environ = dict(os.environ)
            workspace = load(LoadOptions(Path(options["workspace"]), environ=environ))
            for domain in workspace.domains.values():
                if domain.is_own and self._globs_of(domain):
                    endpoint = _export(workspace, domain, environ)
                    self._domains[domain.key] = (domain, endpoint)

    def _globs_of(self, domain: Domain) -> list[str]:
        """Return the globs that select streams of a domain."""
        globs = self._options.texts("streams")
        return [glob for glob in globs if matches(glob.partition("/")[0], domain.key)]

    def get(self, key: str) -> SourceStream:
        """Return the stream of a key of an offset. Raises SourceError without its domain."""
        name, _, stream = key.partition("/")
        options = self._options
        if options["workspace"] is None:
            return SourceStream(key, options.domain, options.stream, options.api_prefix)
        if name not in self._domains:
            raise SourceError(
                f"stream {key} was read before, and streams={options['streams']} selects no domain "
                f"{name} in {options['workspace']}. Start with a new checkpoint"
            )
        domain, endpoint = self._domains[name]
        return SourceStream(
            key, domain.js_domain or domain.key, stream, domain.api_prefix, endpoint
        )

    def find(self) -> SourceStreams:
        """Return the streams that there are now."""
        if self._options["workspace"] is None:
            return SourceStreams([self.get(f"{self._options.domain}/{self._options.stream}")], {})
        found = SourceStreams([], {})
        for name, (domain, endpoint) in self._domains.items():
            try:
                listed = _list_streams(domain, endpoint, self._globs_of(domain))
            except (ApiError, ConnectError) as error:
                found.silent[name] = error.full_text
            else:
                found.streams.extend(self.get(f"{name}/{stream}") for stream in listed)
        found.streams.sort(key=lambda one: one.key)
        return found


def _export(workspace: Workspace, domain: Domain, environ: dict[str, str]) -> Endpoint:
    """Return the endpoint of a domain, with its connection as the files have it."""
    connection = workspace.connections[domain.connection]
    export_connection(resolve_settings(connection, environ), connection.declared)
    return Endpoint(domain.connection, domain.api_prefix)


def _list_streams(domain: Domain, endpoint: Endpoint, globs: list[str]) -> list[str]:
    """Return the names of the streams of a domain that a glob matches, by STREAM.NAMES."""
    names, total = list[str](), 1
    with contextlib.closing(endpoint.open()) as connection:
        while len(names) < total:
            page = request_api(
                connection, domain.api_prefix, "STREAM.NAMES", {"offset": len(names)}
            )
            listed = page.get("streams") or []
            total, names = int(page.get("total") or 0) if listed else 0, names + listed
    return [
        name
        for name in names
        if not name.startswith(STAGING_PREFIX)
        and matches_any(globs, Address.of_stream(domain.key, name))
    ]


# --- their ranges, and their messages as rows -----------------------------------------------------

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


class PushedBounds(Struct, frozen=True):
    """Bounds of a read, all inclusive.

    Sequences, times in ns (None: none) widened by `MAX_CLOCK_SKEW`, and subjects. `is_empty`: the
    bounds exclude each other.
    """

    first: int = 0
    last: int = MAX_BOUND
    since: int | None = None
    until: int | None = None
    filters: tuple[str, ...] = ()
    is_empty: bool = False


def push_filters(
    pushed: PushedBounds, filters: Iterable[Filter]
) -> tuple[PushedBounds, list[Filter]]:
    """Narrow the bounds with the filters, and return those that Spark must apply itself."""
    remaining = []
    for candidate in filters:
        narrowed = _narrow(pushed, candidate)
        pushed = narrowed if narrowed is not None else pushed
        if narrowed is None or _filter_column(candidate) != "seq":
            remaining.append(candidate)
    return replace(pushed, is_empty=pushed.is_empty or pushed.first > pushed.last), remaining


def _filter_column(candidate: Filter) -> str:
    path: tuple[str, ...] = getattr(candidate, "attribute", ())
    return str(path[0]) if len(path) == 1 else ""


def _narrow(pushed: PushedBounds, candidate: Filter) -> PushedBounds | None:
    """Return the bounds with one filter more; None if it does not narrow them."""
    column, bounds = _filter_column(candidate), _find_bounds(candidate)
    if column == "subject":
        return _narrow_subject(pushed, candidate)
    if column == "seq" and isinstance(candidate, IsNotNull):
        return pushed
    if bounds is None or column not in ("seq", "time"):
        return None
    low, high = bounds
    if column == "seq":
        return replace(pushed, first=max(pushed.first, low), last=min(pushed.last, high))
    since, until = pushed.since, pushed.until
    if low > -MAX_BOUND:
        since = max(since or 0, low - MAX_CLOCK_SKEW)
    if high < MAX_BOUND:
        until = min(MAX_BOUND if until is None else until, high + MAX_CLOCK_SKEW)
    return replace(pushed, since=since, until=until)


def _find_bounds(candidate: Filter) -> tuple[int, int] | None:
    """Return the lowest and the highest whole number that a filter selects."""
    match candidate:
        case EqualTo(value=int(value)):
            return value, value
        case GreaterThan(value=int(value)):
            return value + 1, MAX_BOUND
        case GreaterThanOrEqual(value=int(value)):
            return value, MAX_BOUND
        case LessThan(value=int(value)):
            return -MAX_BOUND, value - 1
        case LessThanOrEqual(value=int(value)):
            return -MAX_BOUND, value
    return None


def _narrow_subject(pushed: PushedBounds, candidate: Filter) -> PushedBounds | None:
    """Narrow the subjects once: a consumer matches any of its filters, not all of them."""
    if pushed.filters:
        return None
    match candidate:
        case EqualTo(value=str(value)) if _is_literal(value):
            return replace(pushed, filters=(value,))
        case In(value=values) if values and all(
            isinstance(v, str) and _is_literal(v) for v in values
        ):
            return replace(pushed, filters=tuple(dict.fromkeys(values)))
        case StringStartsWith(value=str(value)) if (
            parent := value.rpartition(".")[0]
        ) and _is_literal(parent):
            return replace(pushed, filters=(f"{parent}.>",))
    return None


def _is_literal(subject: str) -> bool:
    """Return True for a subject without wildcards, blanks or empty tokens."""
    parts = subject.split(".")
    return all(
        part and part not in ("*", ">") and not any(c.isspace() for c in part) for part in parts
    )
