"""Read what a target receives from staging streams, to prove that all of it arrived."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import BlockHasher, extract_sourced
from jsplan.errors import ApiTimeoutError

#: Seconds between two checks of an unchanged target, and until the scan gives up.
POLL_PAUSE: Final = 0.1
IDLE_TIMEOUT: Final = 120.0
#: Messages per read while more arrive. Frequent reads slow down the server that stores them: with
#: 32,768 a million messages of 128 bytes took 5 % longer. Reading all at the end took as long.
READ_STRIDE: Final = 200_000


class Arrived(Struct):
    """Messages of one staging stream that arrived: their number, and their hashes in order.

    `reached` is the last sequence of the staging stream that arrived, `first` the first one there.
    `twice` counts repeated messages.
    """

    messages: int = 0
    hashes: list[str] = field(default_factory=list)
    twice: int = 0
    reached: int = 0
    first: int = 0


def scan_promotions(
    target: Endpoint,
    stream: str,
    first: int,
    staged: Sequence[tuple[str, int]],
    patience: float = IDLE_TIMEOUT,
) -> Iterator[Arrived]:
    """Read a target from a sequence on until all messages of several staging streams are there.

    `staged` are their names and numbers of messages, which the target receives at the same time.
    Yields what arrived of each. Ends without an error when nothing arrives for `patience` seconds.
    """
    scans = [(name, count, Arrived(), BlockHasher()) for name, count in staged]
    place, last_arrival = first, time.monotonic()
    while (
        pending := sum(count - arrived.reached for _, count, arrived, _ in scans)
    ) > 0 and time.monotonic() - last_arrival < patience:
        end = _await_messages(target, stream, place, min(READ_STRIDE, pending))
        if end < place:
            continue
        for rows in target.read(stream, place, end):
            found = [_add_rows(name, rows, arrived, hasher) for name, _, arrived, hasher in scans]
            if any(found):
                last_arrival = time.monotonic()
        place = end + 1
    for _, _, arrived, hasher in scans:
        arrived.messages, arrived.hashes = hasher.count, hasher.hashes()
        yield arrived


def _await_messages(target: Endpoint, stream: str, place: int, wanted: int) -> int:
    """Wait for messages, and return the last sequence of the target; 0 if it does not answer.

    Returns once `wanted` messages from `place` on are there, or when no more arrive for a moment.
    """
    with contextlib.closing(target.open()) as connection:
        try:
            before, end = -1, fetch_stream_info(connection, target.api_prefix, stream).last
            while end - place + 1 < wanted and end != before:
                time.sleep(POLL_PAUSE)
                before, end = end, fetch_stream_info(connection, target.api_prefix, stream).last
        except ApiTimeoutError:
            time.sleep(POLL_PAUSE)
            return 0
    return end


def _add_rows(name: str, rows: pa.RecordBatch, arrived: Arrived, hasher: BlockHasher) -> bool:
    """Add the rows that came from a staging stream. Returns False if there are none."""
    sourced, block, number = extract_sourced(rows, name)
    if not len(number):
        return False
    arrived.first = arrived.first or int(sourced["seq"][0].as_py())
    highest = np.maximum.accumulate(np.concatenate([[arrived.reached], number]))
    arrived.twice += int((number <= highest[:-1]).sum())
    arrived.reached = int(highest[-1])
    hasher.add(sourced["subject"], block, sourced["data"])
    return True
