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

from jsplan.backfill.columns import unaddressed
from jsplan.backfill.job.copying import Copy, InTime, Pace, arranged, at_target, messages
from jsplan.backfill.job.digests import Blocks, canonical
from jsplan.backfill.job.numbered import stored
from jsplan.backfill.wire import Chain, Wire
from jsplan.backfill.wire.writing import await_taker
from jsplan.errors import ApiError, RefusedError


def copy_natively(task: Copy) -> Iterator[dict[str, Any]]:
    """As `copying.copy`; `left` is also said where another staging stream has to go on. `natively` is how many went as they are.

    Raises RefusedError for a message that the target does not even take as it is, else as `copying.copy`.
    """
    wire = task.target.open()
    try:
        await_taker(wire, f"{task.ingest}jsplan")
        with contextlib.closing(messages(task)) as found:
            writer, part = _Writer(task, wire), InTime(task, found)
            for rows in part:
                if (left := writer.take(rows)) is not None:
                    yield writer.said() | {"left": left}
                    return
            yield writer.said() | part.said
    finally:
        wire.close()


class _Writer:
    """Writes to a staging stream whose first sequence is `task.first`."""

    def __init__(self, task: Copy, wire: Wire) -> None:
        self._task = task
        self._payload = wire.max_payload
        self._chain = Chain(wire, task.first - 1, task.ingest.encode())
        self._blocks, self._pace = Blocks(), Pace(task.rate)
        self._wire = wire
        self._natively = 0

    def take(self, rows: pa.RecordBatch) -> int | None:
        """Write the rows; the sequence of the first that does not belong here, None where all do."""
        block = arranged(self._task, rows)
        fits = self._fit(rows, block)
        start = 0
        for place in np.flatnonzero(~fits).tolist():
            self._write(rows.slice(start, place - start), block.slice(start, place - start))
            if not self._belongs(seq := int(rows["seq"][place].as_py())):
                return seq
            self._alone(rows.slice(place, 1), seq)
            start = place + 1
        self._write(rows.slice(start), block.slice(start))
        return None

    def _fit(self, rows: pa.RecordBatch, block: pa.BinaryArray) -> np.ndarray[Any, Any]:
        size = at_target(self._task, rows, block)
        fits: np.ndarray[Any, Any] = size <= self._payload
        self._require_taken(rows["seq"], size[fits], fits)
        return fits

    def _require_taken(self, seqs: pa.Array, sizes: np.ndarray[Any, Any], chosen: np.ndarray[Any, Any]) -> None:
        """Raise RefusedError where the target's own limit is in the way: it counts for every message."""
        over = np.flatnonzero(sizes > self._task.largest).tolist() if self._task.largest >= 0 else []
        if over:
            raise self._refusal(int(seqs.filter(pa.array(chosen))[over[0]].as_py()), int(sizes[over[0]]), self._task.largest)

    def _write(self, rows: pa.RecordBatch, block: pa.BinaryArray) -> None:
        if not rows.num_rows:
            return
        self._chain.write(rows["subject"], block, rows["data"])
        self._blocks.add(canonical(rows["subject"], block, rows["data"]))
        self._pace.passed(block.nbytes + rows["data"].nbytes)

    def _belongs(self, seq: int) -> bool:
        """Whether the staging stream gives it the sequence that it has. Everything before it is stored then, not only sent."""
        return self._chain.finish() + 1 == seq

    def _alone(self, row: pa.RecordBatch, seq: int) -> None:
        """Publish one message without anything that is not its own."""
        if not self._natively:
            self._require_near(seq)
        headers = unaddressed(row["headers"])
        subject, block, data = (column[0].as_py() for column in (row["subject"], headers, row["data"]))
        size = len(block) + len(data)
        if size > self._payload:
            raise self._refusal(seq, size, self._payload)
        if 0 <= self._task.largest < (there := int(at_target(self._task, row, headers)[0])):
            raise self._refusal(seq, there, self._task.largest)
        if (place := self._chain.alone(subject, block, data)) != seq:
            raise ApiError(f"message {seq:,} of stream {self._task.stream} was stored as {place:,}", hint="Run the backfill again.")
        self._blocks.add(canonical(row["subject"], stored(headers), row["data"]))
        self._pace.passed(size)
        self._natively += 1

    def _require_near(self, seq: int) -> None:
        """Raise RefusedError where the target is on the other side of a link. In it the message has a line of the server's more than
        max_payload allows, and since nats-server 2.12 a link closes over which such a message is read: whoever compares it would do that.
        """
        prefix, answer = self._task.target.api_prefix, dict[str, Any]()
        with contextlib.suppress(ApiError):  # another account's import may not have it; then its server is ours
            answer = self._wire.request(f"{prefix}.INFO")
        if answer and "error" not in answer and answer.get("domain") != self._wire.domain:
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

    def said(self) -> dict[str, Any]:
        """What was written, once all of it is stored."""
        self._chain.finish()
        return {
            "messages": self._blocks.count, "bytes": self._pace.bytes, "hashes": self._blocks.hashes(), "skipped": [],
            "natively": self._natively,
        }  # fmt: skip
