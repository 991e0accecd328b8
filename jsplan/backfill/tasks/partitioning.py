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

from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.seq_ranges import SeqRange, count_sequences, intersect
from jsplan.backfill.tasks.copy import CopyTask, ExistingMessages, RateLimiter, read_messages
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.subject_transform import SubjectTransform, rename_subjects

#: A block on its way from a reader to a lane has about so many bytes.
BLOCK_SIZE: Final = 1 << 20
#: With `order: none` so many sequences in a row go to one lane.
PARTITION_STRIDE: Final = 4096


@dataclass(frozen=True, slots=True)
class Partition:
    """Where one writer writes: a staging stream, and the subject prefix that it takes, with the dot."""

    target: Endpoint
    staging_stream: str
    ingest_prefix: str


@dataclass(frozen=True, slots=True)
class ReadChunk:
    """A part of what is to be read: of the origin with this number, these ranges."""

    origin_number: int
    spans: tuple[SeqRange, ...]


@dataclass(frozen=True, slots=True)
class TransformFunction:
    """A user's function: the text of its file travels, not its path, which is for messages."""

    path: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """A copy in lanes. `origin_tasks` say of each origin what is read of it, and what is left out; where they would write to is not looked at.

    `assign_partitions` are the lanes of the origins for `order: stream`. `rate` is bytes per second of all lanes together. `chunk_starts` are there in the
    place of lanes where an archive is written: the sequences with which its pieces begin.
    """

    partitions: tuple[Partition, ...]
    origin_tasks: tuple[CopyTask, ...]
    order: str = "stream"
    assignments: tuple[int, ...] = ()
    where: str | None = None
    transform: TransformFunction | None = None
    subject_transform: SubjectTransform | None = None
    rate: int | None = None
    chunk_starts: tuple[int, ...] = ()

    @property
    def writer_count(self) -> int:
        """How many writers there are."""
        return len(self.chunk_starts) or len(self.partitions)

    @property
    def is_fused(self) -> bool:
        """Whether each lane can read for itself what it writes: then no message enters the JVM."""
        return self.order != "subject" and self.where is None and self.transform is None

    @property
    def has_single_reader(self) -> bool:
        """Whether one task reads and deals to all writers, which are in the same process: a target takes no more than one reader reads, and
        a shuffle costs more than all the rest. Of many origins several readers are worth it.
        """
        return (
            self.order == "subject"
            and len(self.origin_tasks) == 1
            and not self.chunk_starts
            and self.where is None
            and self.transform is None
        )

    def split_into_chunks(self, most: int) -> list[ReadChunk]:
        """What is to be read, in about `most` parts of about equal size, but in one part at least of each origin."""
        if self.chunk_starts:
            return [
                ReadChunk(number, spans)
                for number, leg in enumerate(self.origin_tasks)
                for spans in _split_at(leg.spans, self.chunk_starts)
            ]
        whole = sum(count_sequences(leg.spans) for leg in self.origin_tasks)
        step = max(20_000, -(-whole // max(1, most)))
        cut = (
            (number, _split_by_file(leg) if leg.files else _split_evenly(leg.spans, step))
            for number, leg in enumerate(self.origin_tasks)
        )
        return [ReadChunk(number, spans) for number, parts in cut for spans in parts]

    def chunks_of_partition(self, lane: int) -> list[ReadChunk]:
        """What a lane reads for itself, in the order in which it writes it."""
        if self.order == "stream":
            return [
                ReadChunk(number, leg.spans)
                for number, leg in enumerate(self.origin_tasks)
                if leg.spans and self.assignments[number] == lane
            ]
        return self.split_into_chunks(len(self.partitions) * 4)[lane :: len(self.partitions)]


def _split_evenly(spans: Sequence[SeqRange], step: int) -> Iterator[tuple[SeqRange, ...]]:
    """The spans in parts of about `step` sequences."""
    if not spans:
        return
    first, last = spans[0].first, spans[-1].last
    count = max(1, count_sequences(spans) // step)
    edges = [first + (last - first + 1) * place // count for place in range(count + 1)]
    for start, stop in pairwise(edges):
        part = tuple(intersect(spans, [SeqRange(start, stop - 1)])) if stop > start else ()
        if part:
            yield part


def _split_at(spans: Sequence[SeqRange], firsts: Sequence[int]) -> Iterator[tuple[SeqRange, ...]]:
    """The spans in parts that begin with these sequences."""
    for start, stop in pairwise([*firsts, spans[-1].last + 1] if spans else ()):
        if part := tuple(intersect(spans, [SeqRange(start, stop - 1)])):
            yield part


def _split_by_file(leg: CopyTask) -> Iterator[tuple[SeqRange, ...]]:
    """The spans in a part for each file, or for several whose ranges overlap: whoever reads a file sums it up before."""
    firsts, last = list[int](), 0
    for _, file in sorted(leg.files, key=lambda placed: placed[1].first_seq):
        if file.first_seq > last:
            firsts.append(file.first_seq)
        last = max(last, file.last_seq)
    yield from _split_at(leg.spans, firsts)


def assign_partitions(sizes: Sequence[int], lanes: int) -> tuple[int, ...]:
    """For each origin of so many messages its lane: the largest first, each to the lane that has least."""
    load, found = [0] * lanes, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        found[number] = load.index(min(load))
        load[found[number]] += sizes[number]
    return tuple(found)


# --- reading ---------------------------------------------------------------------------------------------------------


def read_chunk(job: PartitionPlan, piece: ReadChunk, readers: int = 1) -> Iterator[pa.RecordBatch]:
    """What is to be copied of a piece, in the columns of `MESSAGE_SCHEMA`, in order, with subjects as they were. `readers` share the rate.

    Raises what `wire.read` raises.
    """
    pace = RateLimiter(max(1, job.rate // readers) if job.rate else None)
    leg = job.origin_tasks[piece.origin_number]
    files = tuple(
        placed
        for placed in leg.files
        if intersect(piece.spans, [SeqRange(placed[1].first_seq, placed[1].last_seq)])
    )
    if leg.files and not files:
        return
    for rows in read_messages(
        replace(
            leg,
            spans=piece.spans,
            existing=_restrict_existing(leg.existing, piece.spans),
            files=files,
        )
    ):
        yield rows
        pace.throttle(rows.nbytes)


def _restrict_existing(known: ExistingMessages, spans: Sequence[SeqRange]) -> ExistingMessages:
    """What is known of these ranges."""
    start = int(np.searchsorted(known.seq, spans[0].first))
    stop = int(np.searchsorted(known.seq, spans[-1].last, side="right"))
    return ExistingMessages(known.seq[start:stop], known.time[start:stop])


def choose_partitions(
    job: PartitionPlan, leg: int, seqs: SeqArray, subjects: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """To which lane each message goes: the same one however often it is asked."""
    if job.chunk_starts:
        return np.searchsorted(np.array(job.chunk_starts, dtype=np.int64), seqs, side="right") - 1
    count = len(job.partitions)
    if job.order == "subject":
        encoded = pc.dictionary_encode(subjects)
        lanes = np.fromiter(
            (zlib.crc32(subject) % count for subject in encoded.dictionary.to_pylist()),
            dtype=np.int64,
        )
        found: np.ndarray[Any, Any] = (
            lanes[encoded.indices.to_numpy()] if len(subjects) else np.empty(0, dtype=np.int64)
        )
        return found
    if job.order == "stream":
        return np.full(len(seqs), job.assignments[leg], dtype=np.int64)
    return (seqs // PARTITION_STRIDE) % count


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Rows of one origin for one lane, as bytes; `first_seq` is the sequence of the first."""

    partition_number: int
    origin_number: int
    first_seq: int
    rows: bytes


class BlockPacker:
    """Deals the rows of one piece to lanes, and makes blocks of them: a few large values, which cost Spark less than many small ones."""

    def __init__(self, job: PartitionPlan, leg: int) -> None:
        self._plan = job
        self._origin_number = leg
        self._subject_transform = (
            job.subject_transform.compile() if job.subject_transform is not None else None
        )
        self._buffered: dict[int, list[pa.RecordBatch]] = {}
        self._sizes: dict[int, int] = {}

    def pack(self, rows: pa.RecordBatch) -> Iterator[RowBlock]:
        """Rows in the columns of `MESSAGE_SCHEMA`, in order; the blocks that are full."""
        leg = self._plan.origin_tasks[self._origin_number]
        rows = rename_subjects(rows, self._subject_transform, leg.domain, leg.stream)
        lanes = choose_partitions(
            self._plan, self._origin_number, rows["seq"].to_numpy(), rows["subject"]
        )
        for lane, part in partition_rows(rows, lanes):
            self._buffered.setdefault(lane, []).append(part)
            self._sizes[lane] = self._sizes.get(lane, 0) + part.nbytes
            if self._sizes[lane] >= BLOCK_SIZE:
                yield self._block(lane)

    def flush(self) -> Iterator[RowBlock]:
        """The blocks that are not full."""
        for lane in sorted(self._buffered):
            yield self._block(lane)

    def _block(self, lane: int) -> RowBlock:
        held, self._sizes[lane] = self._buffered.pop(lane), 0
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, MESSAGE_SCHEMA) as stream:
            for rows in held:
                stream.write_batch(rows)
        return RowBlock(
            lane, self._origin_number, int(held[0]["seq"][0].as_py()), sink.getvalue().to_pybytes()
        )


def partition_rows(
    rows: pa.RecordBatch, lanes: np.ndarray[Any, Any]
) -> Iterator[tuple[int, pa.RecordBatch]]:
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


def unpack_rows(rows: bytes) -> Iterator[pa.RecordBatch]:
    """The rows of a block."""
    with pa.ipc.open_stream(rows) as stream:
        yield from stream
