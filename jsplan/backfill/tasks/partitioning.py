"""Partitions of a copy: each has its own writer and staging stream, and keeps its order.

Messages of any number of origins are assigned to partitions (`PartitionPlan.order`). A partition
is sorted by origin and sequence, and its staging stream always holds a prefix of it. So the
messages of one subject (`order: subject`) or of one origin (`order: stream`) keep their order,
however often a copy is interrupted and resumed.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from jsplan.backfill.parquet.manifest import Chunk
from jsplan.backfill.parquet.store import ArchiveStore
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.seq_ranges import count_sequences, intersect
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.origin_task import (
    ExistingMessages,
    OriginTask,
    RateLimiter,
    read_messages,
)
from jsplan.backfill.tasks.subject_transform import (
    CompiledTransform,
    SubjectTransform,
    rename_subjects,
)
from jsplan.planning.backfill.model import SeqRange

#: A message with its partition and its origin.
PARTITIONED_SCHEMA: Final = pa.schema(
    [("partition_number", pa.int32()), ("origin_number", pa.int32()), *MESSAGE_SCHEMA]
)
#: Consecutive sequences that go to one partition with `order: none`.
PARTITION_STRIDE: Final = 4096


class Partition(Struct, frozen=True):
    """Target of one writer: a staging stream and its subject prefix, with the dot."""

    target: Endpoint
    staging_stream: str
    ingest_prefix: str


class ReadChunk(Struct, frozen=True):
    """Part of the read: ranges of the origin with this number."""

    origin_number: int
    spans: tuple[SeqRange, ...]


class TransformFunction(Struct, frozen=True):
    """Function of the user.

    Tasks receive the text of its file. The path is for messages only.
    """

    path: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


class TransformSpec(Struct, frozen=True):
    """The order and the transforms of messages during a copy."""

    order: str = "stream"
    where: str | None = None
    transform: TransformFunction | None = None
    subject_transform: SubjectTransform | None = None

    @property
    def needs_rows(self) -> bool:
        """True if Spark must process each message, for SQL or a function."""
        return self.where is not None or self.transform is not None

    @property
    def fingerprint(self) -> str:
        """A hash of the function, which distinguishes staged messages of an earlier version."""
        text = self.transform.text if self.transform is not None else ""
        return hashlib.sha256(text.encode()).hexdigest()[:16] if text else ""

    def compile_subjects(self) -> CompiledTransform | None:
        """Compile the subject transform, if there is one."""
        return self.subject_transform.compile() if self.subject_transform is not None else None


class PartitionPlan(Struct, frozen=True):
    """Copy with several partitions.

    `origin_tasks` say for each origin what to read and what to leave out.
    `assignments` are the partitions of the origins for `order: stream`. `rate` is bytes per second
    of all partitions together. For an archive, `chunks` of it in `store` replace partitions.
    """

    partitions: tuple[Partition, ...]
    origin_tasks: tuple[OriginTask, ...]
    transforms: TransformSpec = TransformSpec()
    assignments: tuple[int, ...] = ()
    rate: int | None = None
    chunks: tuple[Chunk, ...] = ()
    store: ArchiveStore | None = None

    @property
    def is_fused(self) -> bool:
        """Return True if each partition can read for itself. No message then enters the JVM."""
        return self.transforms.order != "subject" and not self.transforms.needs_rows

    @property
    def has_one_origin(self) -> bool:
        """Return True if the only partition has the only origin, unchanged.

        The tail of its staging stream can then be compared with that origin, so only the last
        message of each chunk is fenced (`target_scan`).
        """
        return (
            len(self.partitions) == len(self.origin_tasks) == 1
            and self.is_fused
            and self.transforms.order == "stream"
            and self.transforms.subject_transform is None
        )

    @property
    def has_single_reader(self) -> bool:
        """Return True if one task reads and writes all partitions in one process.

        A target takes no more than one reader can read, and a shuffle costs more than all the
        rest. Several origins are worth several readers.
        """
        return (
            self.transforms.order == "subject"
            and len(self.origin_tasks) == 1
            and not self.chunks
            and not self.transforms.needs_rows
        )

    def split_into_chunks(self, most: int) -> list[ReadChunk]:
        """Split the read into about `most` chunks of similar size, at least one for each origin."""
        if self.chunks:
            firsts = [chunk.first for chunk in self.chunks]
            return [ReadChunk(0, spans) for spans in _split_at(self.origin_tasks[0].spans, firsts)]
        whole = sum(count_sequences(origin.spans) for origin in self.origin_tasks)
        step = max(20_000, -(-whole // max(1, most)))
        split = (
            (number, _split_by_file(origin) if origin.files else _split_evenly(origin.spans, step))
            for number, origin in enumerate(self.origin_tasks)
        )
        return [ReadChunk(number, spans) for number, parts in split for spans in parts]

    def chunks_of_partition(self, partition: int) -> list[ReadChunk]:
        """Return the chunks that a partition reads for itself, in the order of writing."""
        if self.transforms.order == "stream":
            return [
                ReadChunk(number, origin.spans)
                for number, origin in enumerate(self.origin_tasks)
                if origin.spans and self.assignments[number] == partition
            ]
        return self.split_into_chunks(len(self.partitions) * 4)[partition :: len(self.partitions)]


def _split_evenly(spans: Sequence[SeqRange], step: int) -> Iterator[tuple[SeqRange, ...]]:
    """Split ranges into parts of about `step` sequences."""
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
    """Split ranges at these sequences."""
    for start, stop in pairwise([*firsts, spans[-1].last + 1] if spans else ()):
        if part := tuple(intersect(spans, [SeqRange(start, stop - 1)])):
            yield part


def _split_by_file(origin: OriginTask) -> Iterator[tuple[SeqRange, ...]]:
    """Split ranges by file; files with overlapping ranges share a part.

    Reading a file computes its checksum first.
    """
    firsts, last = list[int](), 0
    for _, file in sorted(origin.files, key=lambda placed: placed[1].first_seq):
        if file.first_seq > last:
            firsts.append(file.first_seq)
        last = max(last, file.last_seq)
    yield from _split_at(origin.spans, firsts)


def assign_partitions(sizes: Sequence[int], partitions: int) -> tuple[int, ...]:
    """Return the partition of each origin, given the number of messages of each.

    The largest origins come first. Each goes to the partition with the fewest messages.
    """
    load, chosen = [0] * partitions, [0] * len(sizes)
    for number in sorted(range(len(sizes)), key=lambda number: -sizes[number]):
        chosen[number] = load.index(min(load))
        load[chosen[number]] += sizes[number]
    return tuple(chosen)


# --- reading ---


def read_chunk(plan: PartitionPlan, chunk: ReadChunk, readers: int = 1) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a chunk in the columns of `MESSAGE_SCHEMA`, in order.

    Subjects are not renamed yet. `readers` share the rate. Raises the errors of `read`.
    """
    limiter = RateLimiter(plan.rate, readers)
    origin = plan.origin_tasks[chunk.origin_number]
    files = tuple(
        placed
        for placed in origin.files
        if intersect(chunk.spans, [SeqRange(placed[1].first_seq, placed[1].last_seq)])
    )
    if origin.files and not files:
        return
    for rows in read_messages(
        replace(
            origin,
            spans=chunk.spans,
            existing=_restrict_existing(origin.existing, chunk.spans),
            files=files,
        )
    ):
        yield rows
        limiter.throttle(rows.nbytes)


def _restrict_existing(known: ExistingMessages, spans: Sequence[SeqRange]) -> ExistingMessages:
    """Restrict existing messages to these ranges."""
    start = int(np.searchsorted(known.seq, spans[0].first))
    stop = int(np.searchsorted(known.seq, spans[-1].last, side="right"))
    return ExistingMessages(known.seq[start:stop], known.time[start:stop])


def choose_partitions(
    plan: PartitionPlan, origin_number: int, seq: pa.Array, subjects: pa.BinaryArray
) -> np.ndarray[Any, Any]:
    """Return the partition of each message. The choice is deterministic."""
    seqs: SeqArray = seq.to_numpy()
    if plan.chunks:
        firsts = np.array([chunk.first for chunk in plan.chunks], dtype=np.int64)
        return np.searchsorted(firsts, seqs, side="right") - 1
    count = len(plan.partitions)
    if plan.transforms.order == "subject":
        encoded = pc.dictionary_encode(subjects)
        by_subject = np.fromiter(
            (zlib.crc32(subject) % count for subject in encoded.dictionary.to_pylist()),
            dtype=np.int64,
        )
        chosen: np.ndarray[Any, Any] = (
            by_subject[encoded.indices.to_numpy()] if len(subjects) else np.empty(0, dtype=np.int64)
        )
        return chosen
    if plan.transforms.order == "stream":
        return np.full(len(seqs), plan.assignments[origin_number], dtype=np.int64)
    return (seqs // PARTITION_STRIDE) % count


def add_partition_numbers(
    plan: PartitionPlan, numbers: SeqArray, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """Rename the subjects of rows, and return them by origin and partition.

    They keep their order within each. `numbers` are the origins of the rows. Raises RefusedError
    for an invalid subject.
    """
    transform, parts = plan.transforms.compile_subjects(), []
    for number in np.unique(numbers).tolist():
        origin, mask = plan.origin_tasks[number], numbers == number
        selected = rows if mask.all() else rows.filter(pa.array(mask))
        selected = rename_subjects(selected, transform, origin.domain, origin.stream)
        chosen = choose_partitions(plan, number, selected["seq"], selected["subject"])
        for partition, of_partition in partition_rows(selected, chosen):
            columns = [
                *(
                    pa.array(np.full(of_partition.num_rows, one), pa.int32())
                    for one in (partition, number)
                ),
                *of_partition.columns,
            ]
            parts.append(pa.RecordBatch.from_arrays(columns, schema=PARTITIONED_SCHEMA))
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def partition_rows(
    rows: pa.RecordBatch, partitions: np.ndarray[Any, Any]
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each partition, in order."""
    if not len(partitions):
        return
    if (partitions == partitions[0]).all():
        yield int(partitions[0]), rows
        return
    order = np.argsort(partitions, kind="stable")
    sorted_, rows = partitions[order], rows.take(pa.array(order))
    cuts = [0, *(np.flatnonzero(np.diff(sorted_)) + 1).tolist(), len(order)]
    for start, stop in pairwise(cuts):
        yield int(sorted_[start]), rows.slice(start, stop - start)
