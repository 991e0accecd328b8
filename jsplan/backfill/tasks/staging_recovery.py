"""Recover the sealed staging stream of an earlier attempt, and check it for lost messages.

The last message of each chunk is fenced (`FencedPublisher`), so everything up to it is stored.
Only among the few thousand messages after the last fenced one can a message be missing while a
later one is stored: a cluster elects another leader, or a disk is full for a moment. A resumed run
could add the missing ones only at the end, out of order.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.publisher import FENCE_HEADER
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.tasks.copy import CopyTask, OversizeFilter, build_target_headers, read_messages
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import (
    BlockHasher,
    encode_canonical,
    parse_origin_header,
    strip_transport_headers,
)


@dataclass(frozen=True, slots=True)
class UnprovenTail:
    """Unproven messages at the end of a staging stream.

    The tail begins after the message with origin sequence `last_proven_seq` (0: at the beginning)
    and ends at the last of `seqs`.
    """

    last_proven_seq: int = 0
    seqs: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def read_staging_stream(
    endpoint: Endpoint, staging_stream: str, count: int, domain: str, stream: str
) -> tuple[list[str], UnprovenTail]:
    """Return the hashes of a staging stream, which the target must show too, and its tail.

    `domain` and `stream` are the origin. Raises the errors of `read`.
    """
    hasher, tail = BlockHasher(), UnprovenTail()
    for rows in read(endpoint.open, ReadRequest(endpoint.api_prefix, staging_stream, 1, count)):
        hasher.add(
            encode_canonical(
                rows["subject"],
                strip_transport_headers(rows["headers"]),
                rows["data"],
            )
        )
        tail = _extend_tail(
            tail, rows["headers"], parse_origin_header(rows["headers"], domain, stream)[0]
        )
    return hasher.hashes(), tail


def _extend_tail(tail: UnprovenTail, headers: pa.BinaryArray, origins: pa.Array) -> UnprovenTail:
    seqs = pc.fill_null(origins, 0).to_numpy()
    linked = np.flatnonzero(
        pc.match_substring(headers, b"\r\n" + FENCE_HEADER).to_numpy(zero_copy_only=False)
    )
    if not len(linked):
        return UnprovenTail(tail.last_proven_seq, np.concatenate([tail.seqs, seqs]))
    return UnprovenTail(int(seqs[linked[-1]]), seqs[linked[-1] + 1 :])


def is_incomplete(task: CopyTask, tail: UnprovenTail) -> bool:
    """Return True if the origin has a message that is missing in the tail.

    `task` reads the ranges of the tail. Raises the read errors of `run_copy_task`.
    """
    connection = task.target.open()
    try:
        oversize = OversizeFilter(task, connection.max_payload)
    finally:
        connection.close()
    with contextlib.closing(read_messages(task)) as batches:
        for rows in batches:
            fits = oversize.select_fitting(rows, build_target_headers(task, rows))
            seqs = rows["seq"].to_numpy() if fits is None else rows["seq"].to_numpy()[fits]
            if not np.isin(seqs, tail.seqs).all():
                return True
    return False
