"""Copy task: read ranges of a stream, write them into a staging stream, report the result.

It does not depend on Spark. Reader and writer share a process, so no message enters the JVM.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import add_origin_header, build_origin_parts
from jsplan.backfill.parquet.reader import LocatedFile, read_batches, require_unchanged_files
from jsplan.backfill.protocol import FencedPublisher, RawConnection, read
from jsplan.backfill.protocol.publisher import wait_for_interest
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.seq_arrays import group_into_ranges
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import BlockHasher, encode_canonical
from jsplan.backfill.windows import Deadline, WindowClosedError
from jsplan.errors import RefusedError
from jsplan.subjects import is_subset

#: Each range is a consumer at the origin. More ranges are read as one and filtered here.
MAX_READ_RANGES: Final = 16
#: Most bytes that a server adds when it sources a message, besides the names of subject and staging
#: stream. The fence header is shorter. All has to fit into max_payload: since nats-server 2.12 a
#: leafnode link that transfers a larger message closes.
SOURCE_HEADER_BYTES = 96


@dataclass(frozen=True, slots=True)
class ExistingMessages:
    """Messages of the target: origin sequences and times (ns; 0: any time), sorted by both.

    A recreated stream repeats sequences, so a sequence may be there with several times.
    """

    seq: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    time: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """Messages that a native source of the target delivers by itself.

    From sequence `first` on, the subjects that match one of `filters` (none: all).
    """

    first: int
    filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTask:
    """Input of one copy task.

    `ingest_prefix` is the subject prefix of its staging stream, with the dot. `max_msg_size` is
    the limit of the target for one message in bytes (-1: none), `rate` is bytes per second. The
    task reads `files` instead of `source`, if there are any, and stops at `deadline`.
    """

    source: Endpoint
    domain: str
    stream: str
    spans: tuple[SeqRange, ...]
    filters: tuple[str, ...]
    target: Endpoint
    ingest_prefix: str
    staging_stream: str
    existing: ExistingMessages = field(default_factory=ExistingMessages)
    coverage: tuple[SourceCoverage, ...] = ()
    oversize: str = "error"
    max_msg_size: int = -1
    rate: int | None = None
    files: tuple[LocatedFile, ...] = ()
    deadline: Deadline | None = None


class RateLimiter:
    """Limit the bytes sent per second to `rate`."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self.sent_bytes = 0

    def throttle(self, count: int) -> None:
        """Count sent bytes, and sleep where the rate is exceeded."""
        self.sent_bytes += count
        if self._rate:
            time.sleep(max(0.0, self.sent_bytes / self._rate - (time.monotonic() - self._started)))


def _measure_at_target(
    task: CopyTask, rows: pa.RecordBatch, block: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """Return the maximum size of messages at the target in bytes, with the header of the server."""
    sizes = pc.add(
        pc.add(pc.binary_length(rows["subject"]), pc.binary_length(block)),
        pc.binary_length(rows["data"]),
    )
    measured: np.ndarray[Any, Any] = (
        sizes.to_numpy().astype(np.int64) + SOURCE_HEADER_BYTES + len(task.staging_stream)
    )
    return measured


class OversizeFilter:
    """Filter for messages that are too large for the target."""

    def __init__(self, task: CopyTask, payload: int) -> None:
        self._task = task
        self._payload = payload
        self._skipped = [np.empty(0, dtype=np.int64)]

    def select_fitting(
        self, rows: pa.RecordBatch, block: pa.BinaryArray
    ) -> np.ndarray[Any, Any] | None:
        """Return a mask of the rows that fit; None: all of them.

        Raises RefusedError for `oversize: error`.
        """
        size = _measure_at_target(self._task, rows, block)
        fits = self._select_within(rows, size, self._payload)
        if self._task.max_msg_size >= 0:
            fits &= self._select_within(rows, size, self._task.max_msg_size)
        if fits.all():
            return None
        self._skipped.append(rows["seq"].to_numpy()[~fits])
        return fits

    def _select_within(
        self, rows: pa.RecordBatch, size: np.ndarray[Any, Any], limit: int
    ) -> np.ndarray[Any, Any]:
        fits: np.ndarray[Any, Any] = size <= limit
        if self._task.oversize == "error" and not fits.all():
            place = int(np.argmin(fits))
            raise self._refusal(int(rows["seq"][place].as_py()), int(size[place]), limit)
        return fits

    def list_skipped(self) -> list[SeqRange]:
        """List the skipped sequences."""
        return group_into_ranges(np.concatenate(self._skipped))

    def _refusal(self, seq: int, size: int, limit: int) -> RefusedError:
        return RefusedError(
            f"message {seq:,} of stream {self._task.stream} may have {size:,} bytes with the "
            f"headers that the copy adds. The target accepts at most {limit:,}. "
            "Nothing of this attempt was copied into it",
            hint="Raise max_payload (or max_msg_size of the target), "
            "or skip such messages with `oversize: skip`.",
        )


def run_copy_task(task: CopyTask) -> Iterator[dict[str, Any]]:
    """Run the task, and yield its result last.

    Where the window closed early, the result has the next origin sequence (`left`). Raises
    RefusedError for a message that is too large, PublishRefusedError where another process wrote
    to the staging stream or it was sealed, and ApiError.
    """
    connection = task.target.open()
    try:
        wait_for_interest(connection, f"{task.ingest_prefix}jsplan")
        # closing deletes the consumer at the origin, also after an error
        with contextlib.closing(read_messages(task)) as batches:
            reader = _DeadlineReader(task, batches)
            yield from (
                result | reader.remainder
                for result in _write_messages(task, connection, iter(reader))
            )
    finally:
        connection.close()


def _write_messages(
    task: CopyTask, wire: RawConnection, batches: Iterator[pa.RecordBatch]
) -> Iterator[dict[str, Any]]:
    publisher, hasher, limiter = (
        FencedPublisher(wire, 0, task.ingest_prefix.encode(), sparse=True),
        BlockHasher(),
        RateLimiter(task.rate),
    )
    oversize = OversizeFilter(task, wire.max_payload)
    for rows in batches:
        block = build_target_headers(task, rows)
        fits = oversize.select_fitting(rows, block)
        columns = [rows["subject"], block, rows["data"]]
        subject, headers, data = (
            columns if fits is None else [column.filter(pa.array(fits)) for column in columns]
        )
        publisher.write(subject, headers, data)
        hasher.add(encode_canonical(subject, headers, data))
        limiter.throttle(headers.nbytes + data.nbytes)
    publisher.finish()
    yield {
        "messages": hasher.count,
        "bytes": limiter.sent_bytes,
        "hashes": hasher.hashes(),
        "skipped": [list(span) for span in oversize.list_skipped()],
    }


def build_target_headers(task: CopyTask, rows: pa.RecordBatch) -> pa.BinaryArray:
    """Build the header blocks of rows at the target."""
    return add_origin_header(
        rows["headers"], *build_origin_parts(task.domain, task.stream, rows["seq"], rows["time"])
    )


class _DeadlineReader:
    """Messages that a task reads until its window closes.

    `remainder` has the sequence that the next window continues at, if the window closed early.
    """

    def __init__(self, task: CopyTask, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches = batches
        self._next = task.spans[0].first if task.spans else 0
        self.remainder: dict[str, int] = {}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._batches:
                yield rows
                self._next = int(rows["seq"][-1].as_py()) + 1
        except WindowClosedError:
            self.remainder = {"left": self._next}


def read_messages(task: CopyTask) -> Generator[pa.RecordBatch, None, None]:
    """Read the messages to copy, in the columns of `MESSAGE_SCHEMA`, in order.

    Raises WindowClosedError where the window closes early.
    """
    require_unchanged_files(task.files)
    for span, inside in _plan_reads(task.spans):
        request = ReadRequest(
            task.source.api_prefix, task.stream, span.first, span.last, task.filters
        )
        for rows in (
            read_batches(task.files, span) if task.files else read(task.source.open, request)
        ):
            wanted = _select_wanted(task, rows, inside)
            if wanted is not None:
                rows = rows.filter(pa.array(wanted))  # noqa: PLW2901 - the rest of the batch
            if task.deadline is not None:
                task.deadline.require_open()
            if rows.num_rows:
                yield rows


def _plan_reads(
    spans: tuple[SeqRange, ...],
) -> Iterator[tuple[SeqRange, tuple[SeqRange, ...] | None]]:
    """Yield the ranges to read, each with the parts of it that are wanted (None: all)."""
    if len(spans) <= MAX_READ_RANGES:
        yield from ((span, None) for span in spans)
    else:
        yield SeqRange(spans[0].first, spans[-1].last), spans


def _select_wanted(
    task: CopyTask, rows: pa.RecordBatch, inside: tuple[SeqRange, ...] | None
) -> np.ndarray[Any, Any] | None:
    """Return a mask of the rows to copy; None: all of them."""
    seq = rows["seq"].to_numpy()
    wanted = np.ones(len(seq), dtype=bool)
    if inside is not None:
        firsts = np.fromiter((span.first for span in inside), dtype=np.int64)
        lasts = np.fromiter((span.last for span in inside), dtype=np.int64)
        place = np.searchsorted(firsts, seq, side="right") - 1
        wanted &= (place >= 0) & (seq <= lasts[np.maximum(place, 0)])
    if len(task.existing.seq):
        wanted &= ~find_existing(task.existing, seq, rows["time"].to_numpy())
    for claim in task.coverage:
        wanted &= ~((seq >= claim.first) & _match_filters(rows["subject"], claim.filters))
    return None if wanted.all() else wanted


def find_existing(
    existing: ExistingMessages, seq: np.ndarray[Any, Any], times: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Return a mask of the messages that already exist."""
    first, after = (np.searchsorted(existing.seq, seq, side=side) for side in ("left", "right"))
    found = np.zeros(len(seq), dtype=bool)
    # one round for each time that a sequence exists with
    for later in range(int((after - first).max(initial=0))):
        place = np.minimum(first + later, len(existing.seq) - 1)
        when = existing.time[place]
        found |= (first + later < after) & ((when == times) | (when == 0))
    return found


def _match_filters(subjects: pa.BinaryArray, filters: tuple[str, ...]) -> np.ndarray[Any, Any]:
    if not filters:
        return np.ones(len(subjects), dtype=bool)
    encoded = pc.dictionary_encode(subjects)
    texts = [text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist()]
    matches = np.fromiter(
        (any(is_subset(text, subject_filter) for subject_filter in filters) for text in texts),
        dtype=bool,
        count=len(texts),
    )
    selected: np.ndarray[Any, Any] = matches[encoded.indices.to_numpy()]
    return selected
