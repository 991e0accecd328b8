"""What one task of a copy does: read ranges of a stream, write them into a staging stream of its own, and say what it wrote.

It runs where Spark wants it to and knows no Spark: reader and writer are in the same process, so no message enters the JVM.
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

#: More ranges than these are read as one, and what is between them is left out here: each range is a consumer at the origin.
MAX_READ_RANGES: Final = 16
#: What a server adds at most when it sources a message, beside the names of subject and staging stream; the header of a chain is shorter.
#: It has to fit into max_payload: since nats-server 2.12 a link closes over which somebody reads a message that is larger.
SOURCE_HEADER_BYTES = 96


@dataclass(frozen=True, slots=True)
class ExistingMessages:
    """Messages that the target has: sequences at the origin, and the time of each (ns; 0: whatever it was), sorted by both.

    A stream that was made anew repeats sequences, so one may be there with several times.
    """

    seq: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    time: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class SourceCoverage:
    """What a native source of the target brings by itself: from this sequence on, subjects that match one of `filters` (none: all)."""

    first: int
    filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyTask:
    """One task. `ingest_prefix` is the subject prefix of its staging stream, with the dot; `max_msg_size` is what the target takes of one
    message in bytes (-1: no limit of its own), `rate` bytes per second. `files` are the files to read in the place of `source`.
    At `deadline` it stops. `first_staged_seq` is the first sequence of the staging stream.
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
    first_staged_seq: int = 1


class RateLimiter:
    """Waits, so that no more than `rate` bytes per second go out."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self.sent_bytes = 0

    def throttle(self, count: int) -> None:
        """So many bytes went out."""
        self.sent_bytes += count
        if self._rate:
            time.sleep(max(0.0, self.sent_bytes / self._rate - (time.monotonic() - self._started)))


def measure_at_target(
    task: CopyTask, rows: pa.RecordBatch, block: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """How many bytes messages with these header blocks have at most at the target, with the line that servers add."""
    sizes = pc.add(
        pc.add(pc.binary_length(rows["subject"]), pc.binary_length(block)),
        pc.binary_length(rows["data"]),
    )
    found: np.ndarray[Any, Any] = (
        sizes.to_numpy().astype(np.int64) + SOURCE_HEADER_BYTES + len(task.staging_stream)
    )
    return found


class OversizeFilter:
    """Messages that the target does not take."""

    def __init__(self, task: CopyTask, payload: int) -> None:
        self._task = task
        self._payload = payload
        self._skipped = [np.empty(0, dtype=np.int64)]

    def select_fitting(
        self, rows: pa.RecordBatch, block: pa.BinaryArray
    ) -> np.ndarray[Any, Any] | None:
        """Which rows fit; None: all. Raises RefusedError where that must not be."""
        size = measure_at_target(self._task, rows, block)
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
        """Which were left out."""
        return group_into_ranges(np.concatenate(self._skipped))

    def _refusal(self, seq: int, size: int, limit: int) -> RefusedError:
        return RefusedError(
            f"message {seq:,} of stream {self._task.stream} may have {size:,} bytes with the headers that are added on the way, and the "
            f"target takes {limit:,} at most. Nothing of this attempt was copied into it",
            hint="Raise max_payload (or the target's max_msg_size), or say `oversize: native` (they come without their origin) or "
            "`oversize: skip` (they are left out).",
        )


def run_copy_task(task: CopyTask) -> Iterator[dict[str, Any]]:
    """Carry it out; the last thing that it yields says what was written, with the sequence at the origin that comes next (`left`) where
    the window closed before everything was.

    Raises RefusedError for a message that is too large, `wire.writing.Refused` when somebody else wrote to the staging stream or it was
    sealed, and ApiError.
    """
    wire = task.target.open()
    try:
        wait_for_interest(wire, f"{task.ingest_prefix}jsplan")
        with contextlib.closing(
            read_messages(task)
        ) as found:  # so that the consumer at the origin goes, also when this ends in its middle
            part = DeadlineReader(task, found)
            yield from (said | part.remainder for said in _write_messages(task, wire, iter(part)))
    finally:
        wire.close()


def _write_messages(
    task: CopyTask, wire: RawConnection, found: Iterator[pa.RecordBatch]
) -> Iterator[dict[str, Any]]:
    chain, blocks, pace = (
        FencedPublisher(wire, 0, task.ingest_prefix.encode(), sparse=True),
        BlockHasher(),
        RateLimiter(task.rate),
    )
    large = OversizeFilter(task, wire.max_payload)
    for rows in found:
        block = build_target_headers(task, rows)
        fits = large.select_fitting(rows, block)
        columns = [rows["subject"], block, rows["data"]]
        subject, headers, data = (
            columns if fits is None else [column.filter(pa.array(fits)) for column in columns]
        )
        chain.write(subject, headers, data)
        blocks.add(encode_canonical(subject, headers, data))
        pace.throttle(headers.nbytes + data.nbytes)
    chain.finish()
    yield {
        "messages": blocks.count,
        "bytes": pace.sent_bytes,
        "hashes": blocks.hashes(),
        "skipped": [list(span) for span in large.list_skipped()],
    }


def build_target_headers(task: CopyTask, rows: pa.RecordBatch) -> pa.BinaryArray:
    """The header blocks that rows get at the target."""
    return add_origin_header(
        rows["headers"], *build_origin_parts(task.domain, task.stream, rows["seq"], rows["time"])
    )


class DeadlineReader:
    """What a task reads until its window closes. `remainder` is where the next window goes on, once that was before the end."""

    def __init__(self, task: CopyTask, found: Iterator[pa.RecordBatch]) -> None:
        self._batches = found
        self._next = task.spans[0].first if task.spans else 0
        self.remainder: dict[str, int] = {}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._batches:
                yield rows
                self._next = int(rows["seq"][-1].as_py()) + 1
        except WindowClosedError:
            self.remainder = {"left": self._next, "closed": 1}


def read_messages(task: CopyTask) -> Generator[pa.RecordBatch, None, None]:
    """What is to be copied, in the columns of `wire.MESSAGES`, in order. Raises WindowClosedError where its window closes before."""
    require_unchanged_files(task.files)
    for span, inside in _plan_reads(task.spans):
        what = ReadRequest(task.source.api_prefix, task.stream, span.first, span.last, task.filters)
        for rows in read_batches(task.files, span) if task.files else read(task.source.open, what):
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
    """The ranges that are read, each with the parts of it that are meant (None: all)."""
    if len(spans) <= MAX_READ_RANGES:
        yield from ((span, None) for span in spans)
    else:
        yield SeqRange(spans[0].first, spans[-1].last), spans


def _select_wanted(
    task: CopyTask, rows: pa.RecordBatch, inside: tuple[SeqRange, ...] | None
) -> np.ndarray[Any, Any] | None:
    """Which of the rows are to be copied; None: all of them."""
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
    """Which of these messages are known."""
    first, after = (np.searchsorted(existing.seq, seq, side=side) for side in ("left", "right"))
    found = np.zeros(len(seq), dtype=bool)
    for later in range(
        int((after - first).max(initial=0))
    ):  # as often as a sequence is there with another time
        place = np.minimum(first + later, len(existing.seq) - 1)
        when = existing.time[place]
        found |= (first + later < after) & ((when == times) | (when == 0))
    return found


def _match_filters(subjects: pa.BinaryArray, filters: tuple[str, ...]) -> np.ndarray[Any, Any]:
    if not filters:
        return np.ones(len(subjects), dtype=bool)
    encoded = pc.dictionary_encode(subjects)
    texts = [text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist()]
    hit = np.fromiter(
        (any(is_subset(text, one) for one in filters) for text in texts),
        dtype=bool,
        count=len(texts),
    )
    found: np.ndarray[Any, Any] = hit[encoded.indices.to_numpy()]
    return found
