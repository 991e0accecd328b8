"""`oversize: native`: what one task of a copy does with messages that exceed `max_payload` once their origin is added.

They go without it, as they are, at their place between the others, and are known by the sequence under which they are staged (`numbered`).
So a staging stream ends where that sequence would be another one, and the next begins with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from jsplan.backfill.message_schema import neutralize_headers
from jsplan.backfill.protocol import FencedPublisher, RawConnection
from jsplan.backfill.protocol.publisher import wait_for_interest
from jsplan.backfill.tasks.copy import (
    CopyTask,
    DeadlineReader,
    RateLimiter,
    build_target_headers,
    measure_at_target,
    read_messages,
)
from jsplan.backfill.tasks.hashes import BlockHasher, encode_canonical
from jsplan.backfill.tasks.sequence_identity import to_stored_headers
from jsplan.errors import ApiError, RefusedError


def run_oversize_copy_task(task: CopyTask) -> Iterator[dict[str, Any]]:
    """As `copying.copy`; `left` is also said where another staging stream has to go on. `natively` is how many went as they are.

    Raises RefusedError for a message that the target does not even take as it is, else as `copying.copy`.
    """
    wire = task.target.open()
    try:
        wait_for_interest(wire, f"{task.ingest_prefix}jsplan")
        with contextlib.closing(read_messages(task)) as found:
            writer, part = _OversizeWriter(task, wire), DeadlineReader(task, found)
            for rows in part:
                if (left := writer.write(rows)) is not None:
                    yield writer.result() | {"left": left}
                    return
            yield writer.result() | part.remainder
    finally:
        wire.close()


class _OversizeWriter:
    """Writes to a staging stream whose first sequence is `task.first`."""

    def __init__(self, task: CopyTask, wire: RawConnection) -> None:
        self._task = task
        self._payload = wire.max_payload
        self._publisher = FencedPublisher(
            wire, task.first_staged_seq - 1, task.ingest_prefix.encode()
        )
        self._hasher, self._rate_limiter = BlockHasher(), RateLimiter(task.rate)
        self._connection = wire
        self._untagged_count = 0

    def write(self, rows: pa.RecordBatch) -> int | None:
        """Write the rows; the sequence of the first that does not belong here, None where all do."""
        block = build_target_headers(self._task, rows)
        fits = self._select_fitting(rows, block)
        start = 0
        for place in np.flatnonzero(~fits).tolist():
            self._publish_rows(rows.slice(start, place - start), block.slice(start, place - start))
            if not self._matches_sequence(seq := int(rows["seq"][place].as_py())):
                return seq
            self._publish_untagged(rows.slice(place, 1), seq)
            start = place + 1
        self._publish_rows(rows.slice(start), block.slice(start))
        return None

    def _select_fitting(self, rows: pa.RecordBatch, block: pa.BinaryArray) -> np.ndarray[Any, Any]:
        size = measure_at_target(self._task, rows, block)
        fits: np.ndarray[Any, Any] = size <= self._payload
        self._require_within_limit(rows["seq"], size[fits], fits)
        return fits

    def _require_within_limit(
        self, seqs: pa.Array, sizes: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]
    ) -> None:
        """Raise RefusedError where the target's own limit is in the way: it counts for every message."""
        over = (
            np.flatnonzero(sizes > self._task.max_msg_size).tolist()
            if self._task.max_msg_size >= 0
            else []
        )
        if over:
            raise self._refusal(
                int(seqs.filter(pa.array(chosen))[over[0]].as_py()),
                int(sizes[over[0]]),
                self._task.max_msg_size,
            )

    def _publish_rows(self, rows: pa.RecordBatch, block: pa.BinaryArray) -> None:
        if not rows.num_rows:
            return
        self._publisher.write(rows["subject"], block, rows["data"])
        self._hasher.add(encode_canonical(rows["subject"], block, rows["data"]))
        self._rate_limiter.throttle(block.nbytes + rows["data"].nbytes)

    def _matches_sequence(self, seq: int) -> bool:
        """Whether the staging stream gives it the sequence that it has. Everything before it is stored then, not only sent."""
        return self._publisher.finish() + 1 == seq

    def _publish_untagged(self, row: pa.RecordBatch, seq: int) -> None:
        """Publish one message without anything that is not its own."""
        if not self._untagged_count:
            self._require_local_target(seq)
        headers = neutralize_headers(row["headers"])
        subject, block, data = (
            column[0].as_py() for column in (row["subject"], headers, row["data"])
        )
        size = len(block) + len(data)
        if size > self._payload:
            raise self._refusal(seq, size, self._payload)
        if (
            0
            <= self._task.max_msg_size
            < (there := int(measure_at_target(self._task, row, headers)[0]))
        ):
            raise self._refusal(seq, there, self._task.max_msg_size)
        if (place := self._publisher.write_one(subject, block, data)) != seq:
            raise ApiError(
                f"message {seq:,} of stream {self._task.stream} was stored as {place:,}",
                hint="Run the backfill again.",
            )
        self._hasher.add(encode_canonical(row["subject"], to_stored_headers(headers), row["data"]))
        self._rate_limiter.throttle(size)
        self._untagged_count += 1

    def _require_local_target(self, seq: int) -> None:
        """Raise RefusedError where the target is on the other side of a link. In it the message has a line of the server's more than
        max_payload allows, and since nats-server 2.12 a link closes over which such a message is read: whoever compares it would do that.
        """
        prefix, answer = self._task.target.api_prefix, dict[str, Any]()
        with contextlib.suppress(
            ApiError
        ):  # another account's import may not have it; then its server is ours
            answer = self._connection.request(f"{prefix}.INFO")
        if answer and "error" not in answer and answer.get("domain") != self._connection.domain:
            raise RefusedError(
                f"message {seq:,} of stream {self._task.stream} has no room for a header, and {prefix} is reached over a link between "
                "servers: with what servers add it would be too large for that, and close it. The copy stops before it",
                hint="Connect to a server of the target's own domain, raise max_payload, or say `oversize: skip`.",
            )

    def _refusal(self, seq: int, size: int, limit: int) -> RefusedError:
        return RefusedError(
            f"message {seq:,} of stream {self._task.stream} has {size:,} bytes on the way without a word of where it is from, and the "
            f"target takes {limit:,} at most. The copy stops before it",
            hint="Raise max_payload (or the target's max_msg_size), or leave such messages out with `oversize: skip`.",
        )

    def result(self) -> dict[str, Any]:
        """What was written, once all of it is stored."""
        self._publisher.finish()
        return {
            "messages": self._hasher.count,
            "bytes": self._rate_limiter.sent_bytes,
            "hashes": self._hasher.hashes(),
            "skipped": [],
            "natively": self._untagged_count,
        }
