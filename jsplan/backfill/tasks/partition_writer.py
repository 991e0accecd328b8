"""Writes one lane into its staging stream: sorted rows as a chain, and says of which messages of which origins it was made.

Where rows come from is left to the caller: from a reader in the same process (`copy_partition`), or from Spark.
"""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from jsplan.backfill.protocol import FencedPublisher
from jsplan.backfill.protocol.publisher import wait_for_interest
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.copy import OversizeFilter, RateLimiter, build_target_headers
from jsplan.backfill.tasks.hashes import BlockHasher, encode_canonical
from jsplan.backfill.tasks.partitioning import (
    PartitionPlan,
    choose_partitions,
    partition_rows,
    read_chunk,
)
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import ApiError, RefusedError


@dataclass(slots=True)
class _WrittenMessages:
    """What a lane has written of one origin."""

    messages: int = 0
    size: int = 0
    last: int = 0
    seqs: list[bytes] = field(default_factory=list)

    def add(self, seqs: SeqArray, size: int) -> None:
        self.messages += len(seqs)
        self.size += size
        self.seqs.append(zlib.compress(np.diff(seqs, prepend=self.last).astype("<i8").tobytes(), 1))
        self.last = int(seqs[-1])


def decode_sequences(encoded: Sequence[str]) -> SeqArray:
    """The sequences that a lane says it has written of an origin."""
    steps = [np.frombuffer(zlib.decompress(base64.b64decode(one)), dtype="<i8") for one in encoded]
    return (
        np.cumsum(np.concatenate(steps)).astype(np.int64) if steps else np.empty(0, dtype=np.int64)
    )


class PartitionWriter:
    """Writes one lane. Rows come by origin and sequence; what comes twice is refused."""

    def __init__(self, job: PartitionPlan, lane: int) -> None:
        self._plan = job
        self._number = lane
        self._partition = job.partitions[lane]
        self._connection = self._partition.target.open()
        self._hasher = BlockHasher()
        self._written_by_origin: dict[int, _WrittenMessages] = {}
        self._oversize_by_origin: dict[int, OversizeFilter] = {}
        self._last_position = (-1, 0)
        self._publisher: FencedPublisher | None = None
        self._rate_limiter = RateLimiter(
            max(1, job.rate // len(job.partitions)) if job.rate else None
        )

    def write(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows of one origin, in the columns of `MESSAGES`, under the subjects that they have. How many bytes went out.

        Raises RefusedError, `wire.writing.Refused` where somebody else writes to the stage or it was sealed, and ApiError.
        """
        task, seqs = self._plan.origin_tasks[leg], rows["seq"].to_numpy()
        if task.deadline is not None:
            task.deadline.require_open()
        self._require_order(leg, seqs)
        block = build_target_headers(task, rows)
        fits = self._oversize_filter(leg).select_fitting(rows, block)
        columns = [rows["subject"], block, rows["data"]]
        if fits is not None:
            columns, seqs = [column.filter(pa.array(fits)) for column in columns], seqs[fits]
        if not len(seqs):
            return 0
        subject, headers, data = columns
        self._publish(subject, headers, data)
        self._hasher.add(encode_canonical(subject, headers, data))
        size = headers.nbytes + data.nbytes
        self._written_by_origin.setdefault(leg, _WrittenMessages()).add(seqs, size)
        self._rate_limiter.throttle(size)
        return int(size)

    def _publish(
        self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray
    ) -> None:
        if self._publisher is None:
            self._publisher = self._open_publisher()
            self._publisher.write(subject[:1], headers[:1], data[:1])
            self._publisher.finish()  # of two that begin at once, one is refused here and writes nothing more
            subject, headers, data = subject[1:], headers[1:], data[1:]
        self._publisher.write(subject, headers, data)

    def _open_publisher(self) -> FencedPublisher:
        """Raise ApiError where somebody has written to the stage before: Spark began this task again."""
        wait_for_interest(self._connection, f"{self._partition.ingest_prefix}jsplan")
        if fetch_stream_info(
            self._connection, self._partition.target.api_prefix, self._partition.staging_stream
        ).last:
            raise ApiError(
                f"staging stream {self._partition.staging_stream} was begun by another attempt",
                hint="The next attempt resumes it.",
            )
        return FencedPublisher(self._connection, 0, self._partition.ingest_prefix.encode())

    def _require_order(self, leg: int, seqs: SeqArray) -> None:
        before = self._last_position[1] if self._last_position[0] == leg else 0
        steps = np.diff(seqs, prepend=before)
        if (steps <= 0).any():
            raise build_duplicate_error(self._plan, leg, int(seqs[int(np.argmax(steps <= 0))]))
        self._last_position = (leg, int(seqs[-1]))

    def _oversize_filter(self, leg: int) -> OversizeFilter:
        if leg not in self._oversize_by_origin:
            self._oversize_by_origin[leg] = OversizeFilter(
                replace(
                    self._plan.origin_tasks[leg], staging_stream=self._partition.staging_stream
                ),
                self._connection.max_payload,
            )
        return self._oversize_by_origin[leg]

    def finish(self) -> dict[str, Any]:
        """Wait until all is stored; what was written."""
        if self._publisher is not None:
            self._publisher.finish()
        legs = {
            str(leg): {
                "messages": told.messages,
                "bytes": told.size,
                "seqs": [base64.b64encode(one).decode() for one in told.seqs],
            }
            for leg, told in self._written_by_origin.items()
        }
        skipped = {
            str(leg): [list(span) for span in large.list_skipped()]
            for leg, large in self._oversize_by_origin.items()
            if large.list_skipped()
        }
        return {
            "lane": self._number,
            "messages": self._hasher.count,
            "hashes": self._hasher.hashes(),
            "origins": legs,
            "skipped": skipped,
        }

    def close(self) -> None:
        """Let go of the connection."""
        self._connection.close()


def build_duplicate_error(job: PartitionPlan, leg: int, seq: int) -> RefusedError:
    """What is said of a transform that makes several messages of one."""
    task, who = (
        job.origin_tasks[leg],
        f"transform {job.transform}" if job.transform is not None else "the copy",
    )
    return RefusedError(
        f"{who} makes more than one message of {task.domain}/{task.stream}/{seq}. A copy is known by where it comes from, so nobody could "
        "tell which of them have arrived. Nothing of this attempt was copied",
        hint="Let it return at most one row for each that it gets.",
    )


def copy_partition(job: PartitionPlan, lane: int) -> Iterator[dict[str, Any]]:
    """Carry out a lane that reads for itself; what it yields last is what was written."""
    writer, mapping = (
        PartitionWriter(job, lane),
        job.subject_transform.compile() if job.subject_transform is not None else None,
    )
    try:
        for piece in job.chunks_of_partition(lane):
            leg = job.origin_tasks[piece.origin_number]
            for rows in read_chunk(job, piece, len(job.partitions)):
                writer.write(
                    piece.origin_number, rename_subjects(rows, mapping, leg.domain, leg.stream)
                )
        yield writer.finish()
    finally:
        writer.close()


def copy_all_partitions(job: PartitionPlan) -> Iterator[dict[str, Any]]:
    """Carry out all lanes of a job with one reader; what each lane has written that got any.

    Each batch goes to the lanes one after the other, so that where this dies each has a beginning of what it was to get.
    """
    writers, mapping = (
        dict[int, PartitionWriter](),
        job.subject_transform.compile() if job.subject_transform is not None else None,
    )
    leg = job.origin_tasks[0]
    with contextlib.ExitStack() as opened:
        for piece in job.split_into_chunks(1):
            for read in read_chunk(job, piece):
                rows = rename_subjects(read, mapping, leg.domain, leg.stream)
                for lane, part in partition_rows(
                    rows,
                    choose_partitions(
                        job, piece.origin_number, rows["seq"].to_numpy(), rows["subject"]
                    ),
                ):
                    if lane not in writers:
                        writers[lane] = PartitionWriter(job, lane)
                        opened.callback(writers[lane].close)
                    writers[lane].write(piece.origin_number, part)
        for lane in sorted(writers):
            yield writers[lane].finish()
