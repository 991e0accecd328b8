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

from jsplan.backfill.job.copying import Copy, TooLarge, arranged, messages
from jsplan.backfill.job.digests import Blocks, bare, canonical, origin_of
from jsplan.backfill.job.numbered import stored
from jsplan.backfill.job.ways import Way
from jsplan.backfill.wire import read
from jsplan.backfill.wire.reading import Range
from jsplan.backfill.wire.writing import LINK


@dataclass(frozen=True, slots=True)
class Tail:
    """The messages of a stage that nothing proves: what should be there after the message with the sequence `after` at the origin (0: from
    the beginning on), up to the last of `seqs`.
    """

    after: int = 0
    seqs: np.ndarray[Any, Any] = field(default_factory=lambda: np.empty(0, dtype=np.int64))


def read_stage(way: Way, stage: str, count: int, domain: str, stream: str, base: int = 0) -> tuple[list[str], Tail]:
    """The hashes of what a staging stream has, which are those of what should arrive, and its tail. `domain` and `stream` are the origin,
    `base` is the sequence before its first.

    Raises what `wire.read` raises.
    """
    blocks, tail = Blocks(), Tail()
    for rows in read(way.open, Range(way.api_prefix, stage, base + 1, base + count)):
        blocks.add(canonical(rows["subject"], stored(bare(rows["headers"])), rows["data"]))
        tail = _grown(tail, rows["headers"], origin_of(rows["headers"], domain, stream)[0])
    return blocks.hashes(), tail


def _grown(tail: Tail, headers: pa.BinaryArray, origins: pa.Array) -> Tail:
    seqs = pc.fill_null(origins, 0).to_numpy()
    linked = np.flatnonzero(pc.match_substring(headers, b"\r\n" + LINK).to_numpy(zero_copy_only=False))
    if not len(linked):
        return Tail(tail.after, np.concatenate([tail.seqs, seqs]))
    return Tail(int(seqs[linked[-1]]), seqs[linked[-1] + 1 :])


def lacks(task: Copy, tail: Tail) -> bool:
    """Whether the origin has a message that belongs into a tail and is not there. `task` reads the ranges that the tail is of.

    Raises what `copying.copy` raises of what is read.
    """
    wire = task.target.open()
    try:
        large = TooLarge(task, wire.max_payload)
    finally:
        wire.close()
    with contextlib.closing(messages(task)) as found:
        for rows in found:
            fits = large.without(rows, arranged(task, rows))
            seqs = rows["seq"].to_numpy() if fits is None else rows["seq"].to_numpy()[fits]
            if not np.isin(seqs, tail.seqs).all():
                return True
    return False
