"""Copy task for `oversize: native`: stage too large messages unchanged.

Messages that exceed `max_payload` with their origin header are staged without it, in order, and
are identified by their sequence in the staging stream (`sequence_identity`). A staging stream ends
where that sequence would differ; the next one begins with it.
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
    """Run the task like `run_copy_task`.

    The result also has `left` where another staging stream has to continue. `natively` counts the
    messages that were staged unchanged. Raises RefusedError for a message that the target does not
    accept even unchanged, and the errors of `run_copy_task`.
    """
    connection = task.target.open()
    try:
        wait_for_interest(connection, f"{task.ingest_prefix}jsplan")
        with contextlib.closing(read_messages(task)) as batches:
            writer, reader = _OversizeWriter(task, connection), DeadlineReader(task, batches)
            for rows in reader:
                if (left := writer.write(rows)) is not None:
                    yield writer.result() | {"left": left}
                    return
            yield writer.result() | reader.remainder
    finally:
        connection.close()


class _OversizeWriter:
    """Writer to a staging stream whose first sequence is `task.first_staged_seq`."""

    def __init__(self, task: CopyTask, connection: RawConnection) -> None:
        self._task = task
        self._payload = connection.max_payload
        self._publisher = FencedPublisher(
            connection, task.first_staged_seq - 1, task.ingest_prefix.encode()
        )
        self._hasher, self._rate_limiter = BlockHasher(), RateLimiter(task.rate)
        self._connection = connection
        self._untagged_count = 0

    def write(self, rows: pa.RecordBatch) -> int | None:
        """Write the rows.

        Returns the sequence of the first one that needs another staging stream, or None.
        """
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
        """Raise RefusedError where a message exceeds `max_msg_size` of the target."""
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
        """Return True if the staging stream would give the message its own sequence.

        Everything before it is stored then, not only sent.
        """
        return self._publisher.finish() + 1 == seq

    def _publish_untagged(self, row: pa.RecordBatch, seq: int) -> None:
        """Publish one message unchanged."""
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
            < (stored_size := int(measure_at_target(self._task, row, headers)[0]))
        ):
            raise self._refusal(seq, stored_size, self._task.max_msg_size)
        if (place := self._publisher.write_one(subject, block, data)) != seq:
            raise ApiError(
                f"message {seq:,} of stream {self._task.stream} was stored as {place:,}",
                hint="Run the backfill again.",
            )
        self._hasher.add(encode_canonical(row["subject"], to_stored_headers(headers), row["data"]))
        self._rate_limiter.throttle(size)
        self._untagged_count += 1

    def _require_local_target(self, seq: int) -> None:
        """Raise RefusedError where the target is on the other side of a leafnode link.

        At the target the server adds a header line, and the message exceeds max_payload. Since
        nats-server 2.12 a link closes when such a message is read over it, which verification
        would do.
        """
        prefix, answer = self._task.target.api_prefix, dict[str, Any]()
        # the import of another account may not include it; the server is then our own
        with contextlib.suppress(ApiError):
            answer = self._connection.request(f"{prefix}.INFO")
        if answer and "error" not in answer and answer.get("domain") != self._connection.domain:
            raise RefusedError(
                f"message {seq:,} of stream {self._task.stream} has no space for a header, and "
                f"{prefix} is reached over a leafnode link. With the headers that servers add, the "
                "message would be too large for the link and close it. The copy stopped before it",
                hint="Connect to a server of the target's own domain, raise max_payload, "
                "or set `oversize: skip`.",
            )

    def _refusal(self, seq: int, size: int, limit: int) -> RefusedError:
        return RefusedError(
            f"message {seq:,} of stream {self._task.stream} has {size:,} bytes even without the "
            f"origin header. The target accepts at most {limit:,}. The copy stopped before it",
            hint="Raise max_payload (or max_msg_size of the target), "
            "or skip such messages with `oversize: skip`.",
        )

    def result(self) -> dict[str, Any]:
        """Wait until all messages are stored, and return the result."""
        self._publisher.finish()
        return {
            "messages": self._hasher.count,
            "bytes": self._rate_limiter.sent_bytes,
            "hashes": self._hasher.hashes(),
            "skipped": [],
            "natively": self._untagged_count,
        }
