"""Lanes: each has a writer and a staging stream of its own, so that a copy can have several writers and still an order.

What is read of any number of origins is dealt to lanes (`Job.order`), in each lane it is sorted by origin and sequence, and what a lane
has written is always an exact beginning of that. So however often a copy dies and goes on, messages of one subject (`order: subject`), or
of one origin (`order: stream`), come in their order. No Spark here: it is one way to get the rows from the readers to the writers.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.job.copying import Copy, Known, Pace, messages
from jsplan.backfill.job.mapping import Mapping, renamed
from jsplan.backfill.job.ways import Way
from jsplan.backfill.ranges import Span, common, total
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire import MESSAGES

#: A block on its way from a reader to a lane has about so many bytes.
BLOCK_SIZE: Final = 1 << 20
#: With `order: none` so many sequences in a row go to one lane.
STRIDE: Final = 4096


@dataclass(frozen=True, slots=True)
class Lane:
    """Where one writer writes: a staging stream, and the subject prefix that it takes, with the dot."""

    target: Way
    stage: str
    ingest: str


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of what is to be read: of the origin with this number, these ranges."""

    leg: int
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function: the text of its file travels, not its path, which is for messages."""

    path: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True, slots=True)
class Job:
    """A copy in lanes. `legs` say of each origin what is read of it, and what is left out; where they would write to is not looked at.

    `homes` are the lanes of the origins for `order: stream`. `rate` is bytes per second of all lanes together. `cuts` are there in the
    place of lanes where an archive is written: the sequences with which its pieces begin.
    """

    lanes: tuple[Lane, ...]
    legs: tuple[Copy, ...]
    order: str = "stream"
    homes: tuple[int, ...] = ()
    where: str | None = None
    transform: Function | None = None
    mapping: Mapping | None = None
    rate: int | None = None
    cuts: tuple[int, ...] = ()

    @property
    def width(self) -> int:
        """How many writers there are."""
        return len(self.cuts) or len(self.lanes)

    @property
    def fused(self) -> bool:
        """Whether each lane can read for itself what it writes: then no message enters the JVM."""
        return self.order != "subject" and self.where is None and self.transform is None

    @property
    def dealt(self) -> bool:
        """Whether one task reads and deals to all writers, which are in the same process: a target takes no more than one reader reads, and
        a shuffle costs more than all the rest. Of many origins several readers are worth it.
        """
        return self.order == "subject" and len(self.legs) == 1 and not self.cuts and self.where is None and self.transform is None

    def pieces(self, most: int) -> list[Piece]:
        """What is to be read, in about `most` parts of about equal size, but in one part at least of each origin."""
        if self.cuts:
            return [Piece(number, spans) for number, leg in enumerate(self.legs) for spans in _cut_at(leg.spans, self.cuts)]
        whole = sum(total(leg.spans) for leg in self.legs)
        step = max(20_000, -(-whole // max(1, most)))
        cut = ((number, _cut_by_file(leg) if leg.archive else _cut(leg.spans, step)) for number, leg in enumerate(self.legs))
        return [Piece(number, spans) for number, parts in cut for spans in parts]

    def of_lane(self, lane: int) -> list[Piece]:
        """What a lane reads for itself, in the order in which it writes it."""
        if self.order == "stream":
            return [Piece(number, leg.spans) for number, leg in enumerate(self.legs) if leg.spans and self.homes[number] == lane]
        return self.pieces(len(self.lanes) * 4)[lane :: len(self.lanes)]


def _cut(spans: Sequence[Span], step: int) -> Iterator[tuple[Span, ...]]:
    """The spans in parts of about `step` sequences."""
    if not spans:
        return
    first, last = spans[0].first, spans[-1].last
    count = max(1, total(spans) // step)
    edges = [first + (last - first + 1) * place // count for place in range(count + 1)]
    for start, stop in pairwise(edges):
        part = tuple(common(spans, [Span(start, stop - 1)])) if stop > start else ()
        if part:
            yield part


def _cut_at(spans: Sequence[Span], firsts: Sequence[int]) -> Iterator[tuple[Span, ...]]:
    """The spans in parts that begin with these sequences."""
    for start, stop in pairwise([*firsts, spans[-1].last + 1] if spans else ()):
        if part := tuple(common(spans, [Span(start, stop - 1)])):
            yield part


def _cut_by_file(leg: Copy) -> Iterator[tuple[Span, ...]]:
    """The spans in a part for each file, or for several whose ranges overlap: whoever reads a file sums it up before."""
    firsts, last = list[int](), 0
    for _, file in sorted(leg.archive, key=lambda placed: placed[1].first_seq):
        if file.first_seq > last:
            firsts.append(file.first_seq)
        last = max(last, file.last_seq)
    yield from _cut_at(leg.spans, firsts)


def homes(sizes: Sequence[int], lanes: int) -> tuple[int, ...]:
    """For each origin of so many messages its lane: the largest first, each to the lane that has least."""
    load, found = [0] * lanes, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        found[number] = load.index(min(load))
        load[found[number]] += sizes[number]
    return tuple(found)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_piece(job: Job, piece: Piece, readers: int = 1) -> Iterator[pa.RecordBatch]:
    """What is to be copied of a piece, in the columns of `MESSAGES`, in order, with subjects as they were. `readers` share the rate.

    Raises what `wire.read` raises.
    """
    pace = Pace(max(1, job.rate // readers) if job.rate else None)
    leg = job.legs[piece.leg]
    files = tuple(placed for placed in leg.archive if common(piece.spans, [Span(placed[1].first_seq, placed[1].last_seq)]))
    if leg.archive and not files:
        return
    for rows in messages(replace(leg, spans=piece.spans, known=_within(leg.known, piece.spans), archive=files)):
        yield rows
        pace.passed(rows.nbytes)


def _within(known: Known, spans: Sequence[Span]) -> Known:
    """What is known of these ranges."""
    start = int(np.searchsorted(known.seq, spans[0].first))
    stop = int(np.searchsorted(known.seq, spans[-1].last, side="right"))
    return Known(known.seq[start:stop], known.time[start:stop])


def lane_numbers(job: Job, leg: int, seqs: Sequences, subjects: pa.BinaryArray) -> np.ndarray[Any, Any]:
    """To which lane each message goes: the same one however often it is asked."""
    if job.cuts:
        return np.searchsorted(np.array(job.cuts, dtype=np.int64), seqs, side="right") - 1
    count = len(job.lanes)
    if job.order == "subject":
        encoded = pc.dictionary_encode(subjects)
        lanes = np.fromiter((zlib.crc32(subject) % count for subject in encoded.dictionary.to_pylist()), dtype=np.int64)
        found: np.ndarray[Any, Any] = lanes[encoded.indices.to_numpy()] if len(subjects) else np.empty(0, dtype=np.int64)
        return found
    if job.order == "stream":
        return np.full(len(seqs), job.homes[leg], dtype=np.int64)
    return (seqs // STRIDE) % count


@dataclass(frozen=True, slots=True)
class Block:
    """Rows of one origin for one lane, as bytes; `first` is the sequence of the first."""

    lane: int
    leg: int
    first: int
    rows: bytes


class Packer:
    """Deals the rows of one piece to lanes, and makes blocks of them: a few large values, which cost Spark less than many small ones."""

    def __init__(self, job: Job, leg: int) -> None:
        self._job = job
        self._leg = leg
        self._mapping = job.mapping.made() if job.mapping is not None else None
        self._held: dict[int, list[pa.RecordBatch]] = {}
        self._sizes: dict[int, int] = {}

    def take(self, rows: pa.RecordBatch) -> Iterator[Block]:
        """Rows in the columns of `MESSAGES`, in order; the blocks that are full."""
        leg = self._job.legs[self._leg]
        rows = renamed(rows, self._mapping, leg.domain, leg.stream)
        lanes = lane_numbers(self._job, self._leg, rows["seq"].to_numpy(), rows["subject"])
        for lane, part in dealt(rows, lanes):
            self._held.setdefault(lane, []).append(part)
            self._sizes[lane] = self._sizes.get(lane, 0) + part.nbytes
            if self._sizes[lane] >= BLOCK_SIZE:
                yield self._block(lane)

    def rest(self) -> Iterator[Block]:
        """The blocks that are not full."""
        for lane in sorted(self._held):
            yield self._block(lane)

    def _block(self, lane: int) -> Block:
        held, self._sizes[lane] = self._held.pop(lane), 0
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, MESSAGES) as stream:
            for rows in held:
                stream.write_batch(rows)
        return Block(lane, self._leg, int(held[0]["seq"][0].as_py()), sink.getvalue().to_pybytes())


def dealt(rows: pa.RecordBatch, lanes: np.ndarray[Any, Any]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The rows of each lane, in their order."""
    if not len(lanes):
        return
    if (lanes == lanes[0]).all():
        yield int(lanes[0]), rows
        return
    order = np.argsort(lanes, kind="stable")
    sorted_, rows = lanes[order], rows.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(sorted_)) + 1).tolist(), len(order)]
    for start, stop in pairwise(cuts):
        yield int(sorted_[start]), rows.slice(start, stop - start)


def unpacked(rows: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a block."""
    with pa.ipc.open_stream(rows) as stream:
        yield from stream
