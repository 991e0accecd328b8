"""What an attempt left behind that nobody remembers: what a sealed staging stream has, and whether anything was lost on the way to it.

The last message of each chunk says what must be before it (`wire.Chain`), so all up to there is there. Only of the few thousand messages
behind the last of those that were stored might one be missing while a later one is not: a message is lost where a cluster elects another
leader, or a disk is full for a moment. Whoever took such a stage over would have to put what is missing behind it, out of order.
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
from jsplan.backfill.tasks.sequence_identity import to_stored_headers


@dataclass(frozen=True, slots=True)
class UnprovenTail:
    """The messages of a stage that nothing proves: what should be there after the message with the sequence `last_proven_seq` at the origin (0: from
    the beginning on), up to the last of `seqs`.
    """

    last_proven_seq: int = 0
    seqs: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def read_staging_stream(
    endpoint: Endpoint, stage: str, count: int, domain: str, stream: str, base: int = 0
) -> tuple[list[str], UnprovenTail]:
    """The hashes of what a staging stream has, which are those of what should arrive, and its tail. `domain` and `stream` are the origin,
    `base` is the sequence before its first.

    Raises what `wire.read` raises.
    """
    blocks, tail = BlockHasher(), UnprovenTail()
    for rows in read(
        endpoint.open, ReadRequest(endpoint.api_prefix, stage, base + 1, base + count)
    ):
        blocks.add(
            encode_canonical(
                rows["subject"],
                to_stored_headers(strip_transport_headers(rows["headers"])),
                rows["data"],
            )
        )
        tail = _extend_tail(
            tail, rows["headers"], parse_origin_header(rows["headers"], domain, stream)[0]
        )
    return blocks.hashes(), tail


def _extend_tail(tail: UnprovenTail, headers: pa.BinaryArray, origins: pa.Array) -> UnprovenTail:
    seqs = pc.fill_null(origins, 0).to_numpy()
    linked = np.flatnonzero(
        pc.match_substring(headers, b"\r\n" + FENCE_HEADER).to_numpy(zero_copy_only=False)
    )
    if not len(linked):
        return UnprovenTail(tail.last_proven_seq, np.concatenate([tail.seqs, seqs]))
    return UnprovenTail(int(seqs[linked[-1]]), seqs[linked[-1] + 1 :])


def is_incomplete(task: CopyTask, tail: UnprovenTail) -> bool:
    """Whether the origin has a message that belongs into a tail and is not there. `task` reads the ranges that the tail is of.

    Raises what `copying.copy` raises of what is read.
    """
    wire = task.target.open()
    try:
        large = OversizeFilter(task, wire.max_payload)
    finally:
        wire.close()
    with contextlib.closing(read_messages(task)) as found:
        for rows in found:
            fits = large.select_fitting(rows, build_target_headers(task, rows))
            seqs = rows["seq"].to_numpy() if fits is None else rows["seq"].to_numpy()[fits]
            if not np.isin(seqs, tail.seqs).all():
                return True
    return False
