"""Read staging streams, and what a target receives from them, to prove that nothing is lost.

Where the last message of each chunk is fenced (`FencedPublisher`), everything up to it is stored.
Only among the few thousand messages after the last fenced one can a message be missing while a
later one is stored: a cluster elects another leader, or a disk is full for a moment. A resumed run
could add the missing ones only at the end, out of order.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct, field

from jsplan.backfill.protocol.arrow_split import group_rows
from jsplan.backfill.protocol.publisher import FENCE_HEADER
from jsplan.backfill.protocol.stream_info import fetch_stream_info
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    extract_sourced,
    parse_origins,
    strip_transport_headers,
)
from jsplan.backfill.tasks.origin_task import (
    OriginTask,
    build_target_headers,
    read_messages,
    select_fitting,
)
from jsplan.errors import ApiTimeoutError

#: What identifies an origin: its name, or its number in a plan.
Name = TypeVar("Name", str, int)


class StagedMessages(Struct):
    """The content of a staging stream: the hashes and the origin sequences of its messages.

    `seqs` are by origin (`domain/stream`), in order. The last `unproven` messages come after the
    last fenced one.
    """

    hashes: list[str]
    seqs: dict[str, SeqArray]
    unproven: int = 0

    def find_tail(self, origin: str) -> tuple[int, SeqArray]:
        """Return the last proven sequence of the only origin (0: none), and those after it."""
        seqs = self.seqs.get(origin, np.empty(0, dtype=np.int64))
        cut = max(0, len(seqs) - self.unproven)
        return int(seqs[cut - 1]) if cut else 0, seqs[cut:]


def read_staged_messages(endpoint: Endpoint, staging_stream: str, count: int) -> StagedMessages:
    """Read a whole staging stream. Raises the errors of `read`."""
    hasher, found, unproven = BlockHasher(), dict[str, list[SeqArray]](), 0
    for rows in endpoint.read(staging_stream, 1, count):
        headers = strip_transport_headers(rows["headers"])
        hasher.add(rows["subject"], headers, rows["data"])
        names, seqs, _ = (column.drop_null() for column in parse_origins(headers))
        for name, places in group_rows(names):
            origin = name.decode(errors="surrogateescape")
            found.setdefault(origin, []).append(seqs.to_numpy()[places])
        fenced = np.flatnonzero(
            pc.match_substring(rows["headers"], b"\r\n" + FENCE_HEADER).to_numpy(
                zero_copy_only=False
            )
        )
        unproven = rows.num_rows - 1 - int(fenced[-1]) if len(fenced) else unproven + rows.num_rows
    return StagedMessages(
        hasher.hashes(), {name: np.concatenate(parts) for name, parts in found.items()}, unproven
    )


def find_duplicate(partitions: Sequence[dict[Name, SeqArray]]) -> tuple[Name, int] | None:
    """Return the origin and sequence of a message that the partitions have twice, or None."""
    for name in dict.fromkeys(name for partition in partitions for name in partition):
        seqs = np.sort(
            np.concatenate([partition[name] for partition in partitions if name in partition])
        )
        repeated = np.flatnonzero(np.diff(seqs) == 0)
        if len(repeated):
            return name, int(seqs[repeated[0]])
    return None


def lacks_messages(
    task: OriginTask, target: Endpoint, staging_stream: str, present: SeqArray
) -> bool:
    """Return True if the origin has a message that is not in `present`.

    `task` reads the ranges of the tail of a staging stream. Raises the errors of `read_messages`.
    """
    with contextlib.closing(target.open()) as connection:
        max_payload = connection.max_payload
    with contextlib.closing(read_messages(task)) as batches:
        for rows in batches:
            block = build_target_headers(task, rows)
            fits = select_fitting(task, rows, block, staging_stream, max_payload)
            seqs = rows["seq"].to_numpy() if fits is None else rows["seq"].to_numpy()[fits]
            if not np.isin(seqs, present).all():
                return True
    return False


# --- what a target receives from them -------------------------------------------------------------

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
