"""Read what a target receives from staging streams, to prove that all of it arrived."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    extract_sourced,
)
from jsplan.errors import ApiTimeoutError

#: Seconds between two checks of an unchanged target, and until the scan gives up.
POLL_PAUSE: Final = 0.1
IDLE_TIMEOUT: Final = 120.0
#: Messages per read while more arrive. Frequent reads slow down the server that stores them: with
#: 32,768 a million messages of 128 bytes took 5 % longer. Reading all at the end took as long.
READ_STRIDE: Final = 200_000


class PromotionScan(Struct, frozen=True):
    """Read the messages that a target receives from a staging stream, until all have arrived.

    The staging stream has `messages` messages; the scan begins at sequence `first` of the target.
    """

    target: Endpoint
    stream: str
    first: int
    staging_stream: str
    messages: int


class _PromotionProgress(Struct):
    hasher: BlockHasher
    last_staged_seq: int = 0
    duplicates: int = 0
    first_target_seq: int = 0


def scan_promotions(
    tasks: Sequence[PromotionScan], patience: float = IDLE_TIMEOUT
) -> Iterator[dict[str, Any]]:
    """Scan the target once for several staging streams that it receives at the same time.

    Yields for each task the hashes of the arrived messages, in order. Ends without an error when
    no message arrives for `patience` seconds. `messages` then says how many arrived, and `reached`
    is the last sequence of the staging stream that arrived.
    """
    scans = [(task, _PromotionProgress(BlockHasher())) for task in tasks]
    first, place, last_arrival = tasks[0], tasks[0].first, time.monotonic()
    while (
        pending := sum(task.messages - progress.last_staged_seq for task, progress in scans)
    ) > 0 and time.monotonic() - last_arrival < patience:
        end = _await_messages(first, place, min(READ_STRIDE, pending))
        if end < place:
            continue
        for rows in read(
            first.target.open, ReadRequest(first.target.api_prefix, first.stream, place, end)
        ):
            if any([_add_rows(task, rows, progress) for task, progress in scans]):  # noqa: C419 - each task has to see the rows
                last_arrival = time.monotonic()
        place = end + 1
    yield from (_to_result(progress) for _, progress in scans)


def _to_result(progress: _PromotionProgress) -> dict[str, Any]:
    return {
        "messages": progress.hasher.count,
        "hashes": progress.hasher.hashes(),
        "twice": progress.duplicates,
        "reached": progress.last_staged_seq,
        "first": progress.first_target_seq,
    }


def _await_messages(task: PromotionScan, place: int, wanted: int) -> int:
    """Wait for messages, and return the last sequence of the target; 0 if it does not answer.

    Returns once `wanted` messages from `place` on are there, or when no more arrive for a moment.
    """
    connection = task.target.open()
    try:
        end = fetch_stream_info(connection, task.target.api_prefix, task.stream).last
        while end - place + 1 < wanted:
            time.sleep(POLL_PAUSE)
            before, end = (
                end,
                fetch_stream_info(connection, task.target.api_prefix, task.stream).last,
            )
            if end == before:
                break
    except ApiTimeoutError:
        time.sleep(POLL_PAUSE)
        return 0
    finally:
        connection.close()
    return end


def _add_rows(task: PromotionScan, rows: pa.RecordBatch, progress: _PromotionProgress) -> bool:
    """Add the rows that came from the staging stream. Returns False if there are none."""
    sourced, block, number = extract_sourced(rows, task.staging_stream)
    if not len(number):
        return False
    progress.first_target_seq = progress.first_target_seq or int(sourced["seq"][0].as_py())
    highest = np.maximum.accumulate(np.concatenate([[progress.last_staged_seq], number]))
    progress.duplicates += int((number <= highest[:-1]).sum())
    progress.last_staged_seq = int(highest[-1])
    progress.hasher.add(sourced["subject"], block, sourced["data"])
    return True
