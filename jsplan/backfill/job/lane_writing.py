"""Writes one lane into its staging stream: sorted rows as a chain, and says of which messages of which origins it was made.

Where rows come from is left to the caller: from a reader in the same process (`write_fused`), or from Spark.
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

from jsplan.backfill.job.copying import Pace, TooLarge, arranged
from jsplan.backfill.job.digests import Blocks, canonical
from jsplan.backfill.job.lanes import Job, dealt, lane_numbers, read_piece
from jsplan.backfill.job.mapping import renamed
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire import Chain
from jsplan.backfill.wire.asking import stream_facts
from jsplan.backfill.wire.writing import await_taker
from jsplan.errors import ApiError, RefusedError


@dataclass(slots=True)
class _Told:
    """What a lane has written of one origin."""

    messages: int = 0
    size: int = 0
    last: int = 0
    seqs: list[bytes] = field(default_factory=list)

    def take(self, seqs: Sequences, size: int) -> None:
        self.messages += len(seqs)
        self.size += size
        self.seqs.append(zlib.compress(np.diff(seqs, prepend=self.last).astype("<i8").tobytes(), 1))
        self.last = int(seqs[-1])


def sequences_of(told: Sequence[str]) -> Sequences:
    """The sequences that a lane says it has written of an origin."""
    steps = [np.frombuffer(zlib.decompress(base64.b64decode(one)), dtype="<i8") for one in told]
    return np.cumsum(np.concatenate(steps)).astype(np.int64) if steps else np.empty(0, dtype=np.int64)


class LaneWriter:
    """Writes one lane. Rows come by origin and sequence; what comes twice is refused."""

    def __init__(self, job: Job, lane: int) -> None:
        self._job = job
        self._number = lane
        self._lane = job.lanes[lane]
        self._wire = self._lane.target.open()
        self._blocks = Blocks()
        self._told: dict[int, _Told] = {}
        self._large: dict[int, TooLarge] = {}
        self._place = (-1, 0)
        self._chain: Chain | None = None
        self._pace = Pace(max(1, job.rate // len(job.lanes)) if job.rate else None)

    def take(self, leg: int, rows: pa.RecordBatch) -> int:
        """Write rows of one origin, in the columns of `MESSAGES`, under the subjects that they have. How many bytes went out.

        Raises RefusedError, `wire.writing.Refused` where somebody else writes to the stage or it was sealed, and ApiError.
        """
        task, seqs = self._job.legs[leg], rows["seq"].to_numpy()
        if task.until is not None:
            task.until.require_open()
        self._require_order(leg, seqs)
        block = arranged(task, rows)
        fits = self._too_large(leg).without(rows, block)
        columns = [rows["subject"], block, rows["data"]]
        if fits is not None:
            columns, seqs = [column.filter(pa.array(fits)) for column in columns], seqs[fits]
        if not len(seqs):
            return 0
        subject, headers, data = columns
        self._written(subject, headers, data)
        self._blocks.add(canonical(subject, headers, data))
        size = headers.nbytes + data.nbytes
        self._told.setdefault(leg, _Told()).take(seqs, size)
        self._pace.passed(size)
        return int(size)

    def _written(self, subject: pa.BinaryArray, headers: pa.BinaryArray, data: pa.BinaryArray) -> None:
        if self._chain is None:
            self._chain = self._claimed()
            self._chain.write(subject[:1], headers[:1], data[:1])
            self._chain.finish()  # of two that begin at once, one is refused here and writes nothing more
            subject, headers, data = subject[1:], headers[1:], data[1:]
        self._chain.write(subject, headers, data)

    def _claimed(self) -> Chain:
        """Raise ApiError where somebody has written to the stage before: Spark began this task again."""
        await_taker(self._wire, f"{self._lane.ingest}jsplan")
        if stream_facts(self._wire, self._lane.target.api_prefix, self._lane.stage).last:
            raise ApiError(f"staging stream {self._lane.stage} was begun by another attempt", hint="The next attempt resumes it.")
        return Chain(self._wire, 0, self._lane.ingest.encode())

    def _require_order(self, leg: int, seqs: Sequences) -> None:
        before = self._place[1] if self._place[0] == leg else 0
        steps = np.diff(seqs, prepend=before)
        if (steps <= 0).any():
            raise made_twice(self._job, leg, int(seqs[int(np.argmax(steps <= 0))]))
        self._place = (leg, int(seqs[-1]))

    def _too_large(self, leg: int) -> TooLarge:
        if leg not in self._large:
            self._large[leg] = TooLarge(replace(self._job.legs[leg], stage=self._lane.stage), self._wire.max_payload)
        return self._large[leg]

    def finish(self) -> dict[str, Any]:
        """Wait until all is stored; what was written."""
        if self._chain is not None:
            self._chain.finish()
        legs = {
            str(leg): {"messages": told.messages, "bytes": told.size, "seqs": [base64.b64encode(one).decode() for one in told.seqs]}
            for leg, told in self._told.items()
        }
        skipped = {str(leg): [list(span) for span in large.spans()] for leg, large in self._large.items() if large.spans()}
        return {"lane": self._number, "messages": self._blocks.count, "hashes": self._blocks.hashes(), "origins": legs, "skipped": skipped}

    def close(self) -> None:
        """Let go of the connection."""
        self._wire.close()


def made_twice(job: Job, leg: int, seq: int) -> RefusedError:
    """What is said of a transform that makes several messages of one."""
    task, who = job.legs[leg], f"transform {job.transform}" if job.transform is not None else "the copy"
    return RefusedError(
        f"{who} makes more than one message of {task.domain}/{task.stream}/{seq}. A copy is known by where it comes from, so nobody could "
        "tell which of them have arrived. Nothing of this attempt was copied",
        hint="Let it return at most one row for each that it gets.",
    )


def write_fused(job: Job, lane: int) -> Iterator[dict[str, Any]]:
    """Carry out a lane that reads for itself; what it yields last is what was written."""
    writer, mapping = LaneWriter(job, lane), job.mapping.made() if job.mapping is not None else None
    try:
        for piece in job.of_lane(lane):
            leg = job.legs[piece.leg]
            for rows in read_piece(job, piece, len(job.lanes)):
                writer.take(piece.leg, renamed(rows, mapping, leg.domain, leg.stream))
        yield writer.finish()
    finally:
        writer.close()


def write_dealt(job: Job) -> Iterator[dict[str, Any]]:
    """Carry out all lanes of a job with one reader; what each lane has written that got any.

    Each batch goes to the lanes one after the other, so that where this dies each has a beginning of what it was to get.
    """
    writers, mapping = dict[int, LaneWriter](), job.mapping.made() if job.mapping is not None else None
    leg = job.legs[0]
    with contextlib.ExitStack() as opened:
        for piece in job.pieces(1):
            for read in read_piece(job, piece):
                rows = renamed(read, mapping, leg.domain, leg.stream)
                for lane, part in dealt(rows, lane_numbers(job, piece.leg, rows["seq"].to_numpy(), rows["subject"])):
                    if lane not in writers:
                        writers[lane] = LaneWriter(job, lane)
                        opened.callback(writers[lane].close)
                    writers[lane].take(piece.leg, part)
        for lane in sorted(writers):
            yield writers[lane].finish()
