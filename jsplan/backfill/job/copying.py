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

from jsplan.backfill.columns import addressed, origin_words
from jsplan.backfill.job.archived import Placed, batches, require_unharmed
from jsplan.backfill.job.digests import Blocks, canonical
from jsplan.backfill.job.ways import Way
from jsplan.backfill.ranges import Span
from jsplan.backfill.sequence_arrays import runs
from jsplan.backfill.windows import Deadline, WindowClosedError
from jsplan.backfill.wire import Chain, Wire, read
from jsplan.backfill.wire.reading import Range
from jsplan.backfill.wire.writing import await_taker
from jsplan.errors import RefusedError
from jsplan.subjects import within

#: More ranges than these are read as one, and what is between them is left out here: each range is a consumer at the origin.
RANGES: Final = 16
#: What a server adds at most when it sources a message, beside the names of subject and staging stream; the header of a chain is shorter.
#: It has to fit into max_payload: since nats-server 2.12 a link closes over which somebody reads a message that is larger.
SOURCED = 96


@dataclass(frozen=True, slots=True)
class Known:
    """Messages that the target has: sequences at the origin, and the time of each (ns; 0: whatever it was), sorted by both.

    A stream that was made anew repeats sequences, so one may be there with several times.
    """

    seq: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    time: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Claim:
    """What a native source of the target brings by itself: from this sequence on, subjects that match one of `filters` (none: all)."""

    first: int
    filters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """One task. `ingest` is the subject prefix of its staging stream, with the dot; `largest` is what the target takes of one
    message in bytes (-1: no limit of its own), `rate` bytes per second. `archive` are the files to read in the place of `source`.
    At `until` it stops. `first` is the first sequence of the staging stream.
    """

    source: Way
    domain: str
    stream: str
    spans: tuple[Span, ...]
    filters: tuple[str, ...]
    target: Way
    ingest: str
    stage: str
    known: Known = field(default_factory=Known)
    claims: tuple[Claim, ...] = ()
    oversize: str = "error"
    largest: int = -1
    rate: int | None = None
    archive: tuple[Placed, ...] = ()
    until: Deadline | None = None
    first: int = 1


class Pace:
    """Waits, so that no more than `rate` bytes per second go out."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._started = time.monotonic()
        self.bytes = 0

    def passed(self, count: int) -> None:
        """So many bytes went out."""
        self.bytes += count
        if self._rate:
            time.sleep(max(0.0, self.bytes / self._rate - (time.monotonic() - self._started)))


def at_target(task: Copy, rows: pa.RecordBatch, block: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """How many bytes messages with these header blocks have at most at the target, with the line that servers add."""
    sizes = pc.add(pc.add(pc.binary_length(rows["subject"]), pc.binary_length(block)), pc.binary_length(rows["data"]))
    found: np.ndarray[Any, Any] = sizes.to_numpy().astype(np.int64) + SOURCED + len(task.stage)
    return found


class TooLarge:
    """Messages that the target does not take."""

    def __init__(self, task: Copy, payload: int) -> None:
        self._task = task
        self._payload = payload
        self._found = [np.empty(0, dtype=np.int64)]

    def without(self, rows: pa.RecordBatch, block: pa.BinaryArray) -> np.ndarray[Any, Any] | None:
        """Which rows fit; None: all. Raises RefusedError where that must not be."""
        size = at_target(self._task, rows, block)
        fits = self._within(rows, size, self._payload)
        if self._task.largest >= 0:
            fits &= self._within(rows, size, self._task.largest)
        if fits.all():
            return None
        self._found.append(rows["seq"].to_numpy()[~fits])
        return fits

    def _within(self, rows: pa.RecordBatch, size: np.ndarray[Any, Any], limit: int) -> np.ndarray[Any, Any]:
        fits: np.ndarray[Any, Any] = size <= limit
        if self._task.oversize == "error" and not fits.all():
            place = int(np.argmin(fits))
            raise self._refusal(int(rows["seq"][place].as_py()), int(size[place]), limit)
        return fits

    def spans(self) -> list[Span]:
        """Which were left out."""
        return runs(np.concatenate(self._found))

    def _refusal(self, seq: int, size: int, limit: int) -> RefusedError:
        return RefusedError(
            f"message {seq:,} of stream {self._task.stream} may have {size:,} bytes with the headers that are added on the way, and the "
            f"target takes {limit:,} at most. Nothing of this attempt was copied into it",
            hint="Raise max_payload (or the target's max_msg_size), or say `oversize: native` (they come without their origin) or "
            "`oversize: skip` (they are left out).",
        )


def copy(task: Copy) -> Iterator[dict[str, Any]]:
    """Carry it out; the last thing that it yields says what was written, with the sequence at the origin that comes next (`left`) where
    the window closed before everything was.

    Raises RefusedError for a message that is too large, `wire.writing.Refused` when somebody else wrote to the staging stream or it was
    sealed, and ApiError.
    """
    wire = task.target.open()
    try:
        await_taker(wire, f"{task.ingest}jsplan")
        with contextlib.closing(messages(task)) as found:  # so that the consumer at the origin goes, also when this ends in its middle
            part = InTime(task, found)
            yield from (said | part.said for said in _copied(task, wire, iter(part)))
    finally:
        wire.close()


def _copied(task: Copy, wire: Wire, found: Iterator[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
    chain, blocks, pace = Chain(wire, 0, task.ingest.encode(), sparse=True), Blocks(), Pace(task.rate)
    large = TooLarge(task, wire.max_payload)
    for rows in found:
        block = arranged(task, rows)
        fits = large.without(rows, block)
        columns = [rows["subject"], block, rows["data"]]
        subject, headers, data = columns if fits is None else [column.filter(pa.array(fits)) for column in columns]
        chain.write(subject, headers, data)
        blocks.add(canonical(subject, headers, data))
        pace.passed(headers.nbytes + data.nbytes)
    chain.finish()
    yield {"messages": blocks.count, "bytes": pace.bytes, "hashes": blocks.hashes(), "skipped": [list(span) for span in large.spans()]}


def arranged(task: Copy, rows: pa.RecordBatch) -> pa.BinaryArray:
    """The header blocks that rows get at the target."""
    return addressed(rows["headers"], *origin_words(task.domain, task.stream, rows["seq"], rows["time"]))


class InTime:
    """What a task reads until its window closes. `said` is where the next window goes on, once that was before the end."""

    def __init__(self, task: Copy, found: Iterator[pa.RecordBatch]) -> None:
        self._found = found
        self._next = task.spans[0].first if task.spans else 0
        self.said: dict[str, int] = {}

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for rows in self._found:
                yield rows
                self._next = int(rows["seq"][-1].as_py()) + 1
        except WindowClosedError:
            self.said = {"left": self._next, "closed": 1}


def messages(task: Copy) -> Generator[pa.RecordBatch, None, None]:
    """What is to be copied, in the columns of `wire.MESSAGES`, in order. Raises WindowClosedError where its window closes before."""
    require_unharmed(task.archive)
    for span, inside in _readings(task.spans):
        what = Range(task.source.api_prefix, task.stream, span.first, span.last, task.filters)
        for rows in batches(task.archive, span) if task.archive else read(task.source.open, what):
            wanted = _wanted(task, rows, inside)
            if wanted is not None:
                rows = rows.filter(pa.array(wanted))  # noqa: PLW2901 - the rest of the batch
            if task.until is not None:
                task.until.require_open()
            if rows.num_rows:
                yield rows


def _readings(spans: tuple[Span, ...]) -> Iterator[tuple[Span, tuple[Span, ...] | None]]:
    """The ranges that are read, each with the parts of it that are meant (None: all)."""
    if len(spans) <= RANGES:
        yield from ((span, None) for span in spans)
    else:
        yield Span(spans[0].first, spans[-1].last), spans


def _wanted(task: Copy, rows: pa.RecordBatch, inside: tuple[Span, ...] | None) -> np.ndarray[Any, Any] | None:
    """Which of the rows are to be copied; None: all of them."""
    seq = rows["seq"].to_numpy()
    wanted = np.ones(len(seq), dtype=bool)
    if inside is not None:
        firsts = np.fromiter((span.first for span in inside), dtype=np.int64)
        lasts = np.fromiter((span.last for span in inside), dtype=np.int64)
        place = np.searchsorted(firsts, seq, side="right") - 1
        wanted &= (place >= 0) & (seq <= lasts[np.maximum(place, 0)])
    if len(task.known.seq):
        wanted &= ~known_among(task.known, seq, rows["time"].to_numpy())
    for claim in task.claims:
        wanted &= ~((seq >= claim.first) & _matching(rows["subject"], claim.filters))
    return None if wanted.all() else wanted


def known_among(known: Known, seq: np.ndarray[Any, Any], times: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Which of these messages are known."""
    first, after = (np.searchsorted(known.seq, seq, side=side) for side in ("left", "right"))
    found = np.zeros(len(seq), dtype=bool)
    for later in range(int((after - first).max(initial=0))):  # as often as a sequence is there with another time
        place = np.minimum(first + later, len(known.seq) - 1)
        when = known.time[place]
        found |= (first + later < after) & ((when == times) | (when == 0))
    return found


def _matching(subjects: pa.BinaryArray, filters: tuple[str, ...]) -> np.ndarray[Any, Any]:
    if not filters:
        return np.ones(len(subjects), dtype=bool)
    encoded = pc.dictionary_encode(subjects)
    texts = [text.decode(errors="surrogateescape") for text in encoded.dictionary.to_pylist()]
    hit = np.fromiter((any(within(text, one) for one in filters) for text in texts), dtype=bool, count=len(texts))
    found: np.ndarray[Any, Any] = hit[encoded.indices.to_numpy()]
    return found
