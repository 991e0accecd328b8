"""Read the sealed staging streams of earlier attempts, and check them for lost messages.

Where the last message of each chunk is fenced (`FencedPublisher`), everything up to it is stored.
Only among the few thousand messages after the last fenced one can a message be missing while a
later one is stored: a cluster elects another leader, or a disk is full for a moment. A resumed run
could add the missing ones only at the end, out of order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.protocol.arrow_split import group_rows
from jsplan.backfill.protocol.publisher import FENCE_HEADER
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import BlockHasher, parse_origins, strip_transport_headers
from jsplan.backfill.tasks.origin_task import (
    OriginTask,
    build_target_headers,
    read_messages,
    select_fitting,
)

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
