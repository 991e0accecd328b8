"""Write one partition into its staging stream, in order, and report its origins.

Rows come from a reader in the same process (`copy_partitions`) or from Spark.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from jsplan.backfill.protocol import FencedPublisher
from jsplan.backfill.protocol.publisher import wait_for_interest
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges
from jsplan.backfill.tasks.hashes import BlockHasher
from jsplan.backfill.tasks.origin_task import RateLimiter, build_target_headers, select_fitting
from jsplan.backfill.tasks.partitioning import (
    PartitionPlan,
    choose_partitions,
    partition_rows,
    read_chunk,
)
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import ApiError, RefusedError
from jsplan.planning.backfill.model import SeqRange


class WrittenMessages(Struct):
    """Messages of one origin that a partition has written; `steps` are their sequences, packed."""

    messages: int = 0
    size: int = 0
    last: int = 0
    steps: list[bytes] = field(default_factory=list)

    def add(self, seqs: SeqArray, size: int) -> None:
        """Add messages of so many bytes."""
        self.messages += len(seqs)
        self.size += size
        steps = np.diff(seqs, prepend=self.last).astype("<i8")
        self.steps.append(zlib.compress(steps.tobytes(), 1))
        self.last = int(seqs[-1])

    @property
    def seqs(self) -> SeqArray:
        """The sequences of the messages."""
        steps = [np.frombuffer(zlib.decompress(part), dtype="<i8") for part in self.steps]
        found: SeqArray = np.cumsum(np.concatenate(steps)).astype(np.int64)
        return found


class PartitionResult(Struct):
    """Written messages of a partition, and those left out as too large, by origin number."""

    partition: int
    messages: int
    hashes: list[str]
    origins: dict[int, WrittenMessages]
    skipped: dict[int, list[SeqRange]]


class PartitionWriter:
    """Writer of one partition.

    Rows arrive sorted by origin and sequence. A repeated sequence is refused.
    """

    def __init__(self, plan: PartitionPlan, number: int) -> None:
        self._plan = plan
        self._number = number
        self._partition = plan.partitions[number]
        self._connection = self._partition.target.open()
        self._hasher = BlockHasher()
        self._written_by_origin: dict[int, WrittenMessages] = {}
        self._skipped: dict[int, list[SeqArray]] = {}
        self._last_position = (-1, 0)
        self._publisher: FencedPublisher | None = None
        self._rate_limiter = RateLimiter(plan.rate, len(plan.partitions))

    def write(self, origin_number: int, rows: pa.RecordBatch) -> int:
        """Write rows of one origin in the columns of `MESSAGE_SCHEMA`, and return the bytes sent.

        The subjects are final. Raises RefusedError, PublishRefusedError where another process
        writes to the staging stream or it was sealed, and ApiError.
        """
        task, seqs = self._plan.origin_tasks[origin_number], rows["seq"].to_numpy()
        if task.deadline is not None:
            task.deadline.require_open()
        self._require_order(origin_number, seqs)
        block = build_target_headers(task, rows)
        fits = select_fitting(
            task, rows, block, self._partition.staging_stream, self._connection.max_payload
        )
        columns = [rows["subject"], block, rows["data"]]
        if fits is not None:
            self._skipped.setdefault(origin_number, []).append(seqs[~fits])
            columns, seqs = [column.filter(pa.array(fits)) for column in columns], seqs[fits]
        if not len(seqs):
            return 0
        subject, headers, data = columns
        self._publish(subject, headers, data)
        self._hasher.add(subject, headers, data)
        size = headers.nbytes + data.nbytes
        self._written_by_origin.setdefault(origin_number, WrittenMessages()).add(seqs, size)
        self._rate_limiter.throttle(size)
        return int(size)

    def _publish(
        self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
    ) -> None:
        if self._publisher is None:
            self._publisher = self._open_publisher()
            self._publisher.write(subject[:1], headers[:1], data[:1])
            # of two writers that begin at the same time, the server refuses one here
            self._publisher.finish()
            subject, headers, data = subject[1:], headers[1:], data[1:]
        self._publisher.write(subject, headers, data)

    def _open_publisher(self) -> FencedPublisher:
        """Open the publisher. Raises ApiError where the staging stream already has messages.

        That happens when Spark runs this task again.
        """
        wait_for_interest(self._connection, f"{self._partition.ingest_prefix}jsplan")
        if fetch_stream_info(
            self._connection, self._partition.target.api_prefix, self._partition.staging_stream
        ).last:
            raise ApiError(
                f"staging stream {self._partition.staging_stream} already has messages "
                "of another attempt",
                hint="The next attempt resumes it.",
            )
        prefix = self._partition.ingest_prefix.encode()
        return FencedPublisher(self._connection, 0, prefix, sparse=self._plan.has_one_origin)

    def _require_order(self, origin_number: int, seqs: SeqArray) -> None:
        before = self._last_position[1] if self._last_position[0] == origin_number else 0
        self._last_position = (
            origin_number,
            require_ascending(self._plan, origin_number, seqs, before),
        )

    def finish(self) -> PartitionResult:
        """Wait until all messages are stored, and return what was written."""
        if self._publisher is not None:
            self._publisher.finish()
        skipped = {
            number: group_into_ranges(np.concatenate(parts))
            for number, parts in self._skipped.items()
        }
        return PartitionResult(
            self._number,
            self._hasher.count,
            self._hasher.hashes(),
            self._written_by_origin,
            skipped,
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def require_ascending(plan: PartitionPlan, origin_number: int, seqs: SeqArray, before: int) -> int:
    """Return the last of the sequences that are to be written after one of their origin.

    Raises RefusedError for a sequence that is repeated.
    """
    steps = np.diff(seqs, prepend=before)
    if (steps <= 0).any():
        raise build_duplicate_error(plan, origin_number, int(seqs[np.argmax(steps <= 0)]))
    return int(seqs[-1])


def build_duplicate_error(plan: PartitionPlan, origin_number: int, seq: int) -> RefusedError:
    """Build the error for a transform that returns several rows for one message."""
    task, transform = plan.origin_tasks[origin_number], plan.transforms.transform
    subject = f"transform {transform}" if transform is not None else "the copy"
    return RefusedError(
        f"{subject} makes more than one message of {task.domain}/{task.stream}/{seq}. A copied "
        "message is identified by its origin, so the two cannot be distinguished. "
        "Nothing of this attempt was copied",
        hint="Return at most one row for each input row.",
    )


def copy_partitions(plan: PartitionPlan, number: int | None = None) -> Iterator[PartitionResult]:
    """Copy a partition that reads for itself, or without `number` all of them with one reader.

    Yields the result of each partition that has messages. One reader writes each batch to the
    partitions one after the other. If the process ends, each staging stream therefore holds a
    prefix of its partition.
    """
    chunks, readers = plan.split_into_chunks(1), 1
    if number is not None:
        chunks, readers = plan.chunks_of_partition(number), len(plan.partitions)
    transform, writers = plan.transforms.compile_subjects(), dict[int, PartitionWriter]()
    with contextlib.ExitStack() as opened:
        for chunk in chunks:
            origin = plan.origin_tasks[chunk.origin_number]
            for batch in read_chunk(plan, chunk, readers):
                rows = rename_subjects(batch, transform, origin.domain, origin.stream)
                chosen = (
                    choose_partitions(plan, chunk.origin_number, rows["seq"], rows["subject"])
                    if number is None
                    else np.full(rows.num_rows, number)
                )
                for partition, part in partition_rows(rows, chosen):
                    if partition not in writers:
                        writers[partition] = PartitionWriter(plan, partition)
                        opened.callback(writers[partition].close)
                    writers[partition].write(chunk.origin_number, part)
        yield from (writers[partition].finish() for partition in sorted(writers))
