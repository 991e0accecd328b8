"""Which messages of a range a stream has, each with a hash of what a copy keeps of it: both sides of what a server copied by itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.verify.message_rows import (
    NO_ORIGIN,
    ComparedOrigin,
    read_origin_rows,
    read_target_rows,
)

_EMPTY: Final = np.empty(0, dtype=np.int64)


@dataclass(slots=True)
class Tally:
    """Sequences at the origin and hashes, in the order in which they were read."""

    seqs: SeqArray = field(default_factory=lambda: _EMPTY)
    digests: SeqArray = field(default_factory=lambda: _EMPTY)

    def add(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Take more rows; how many there were."""
        every = [
            batch for batch in batches if batch.num_rows and batch["leg"][0].as_py() != NO_ORIGIN
        ]
        self.seqs = np.concatenate([self.seqs, *(batch["seq"].to_numpy() for batch in every)])
        self.digests = np.concatenate(
            [self.digests, *(batch["digest"].to_numpy() for batch in every)]
        )
        return sum(batch.num_rows for batch in every)

    @property
    def last(self) -> int:
        """The highest sequence; 0: none."""
        return int(self.seqs.max(initial=0))


@dataclass(frozen=True, slots=True)
class NativeComparison:
    """`missing` are at the origin and not in the target, `first_difference` has one that is not the same on both sides (0: none), `duplicates`
    how many are there more than once. `in_order`: none stands before an earlier one.
    """

    missing: list[SeqRange]
    first_difference: int
    duplicates: int
    in_order: bool


def compare_tallies(origin: Tally, target: Tally) -> NativeComparison:
    """What both sides say. What only the target has was there when it was copied."""
    seqs, first = np.unique(target.seqs, return_index=True)
    both, here, there = np.intersect1d(origin.seqs, seqs, assume_unique=True, return_indices=True)
    unequal = both[origin.digests[here] != target.digests[first][there]]
    missing = group_into_ranges(np.setdiff1d(origin.seqs, seqs, assume_unique=True))
    in_order = bool((np.diff(target.seqs) > 0).all())
    return NativeComparison(
        missing, int(unequal[0]) if len(unequal) else 0, len(target.seqs) - len(seqs), in_order
    )


def tally_origin(endpoint: Endpoint, leg: ComparedOrigin) -> Tally:
    """What the origin has of a leg. Raises what `wire.read` raises."""
    found = Tally()
    found.add(read_origin_rows(endpoint, leg))
    return found


def tally_sourced(
    found: Tally, endpoint: Endpoint, stream: str, first: int, last: int, leg: ComparedOrigin
) -> bool:
    """Take what the target's own sources brought of a leg between two sequences of it; whether there was any. Raises as `wire.read`."""
    return found.add(read_target_rows(endpoint, stream, first, last, (leg,))) > 0


def read_restored_rows(
    endpoint: Endpoint, stream: str, leg: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """The target's side of a leg whose messages are at the sequences that they had. Raises what `wire.read` raises."""
    for batch in read_origin_rows(endpoint, replace(leg, stream=stream, skipped=(), filters=())):
        columns: dict[str, Any] = {name: batch[name] for name in batch.schema.names}
        columns |= {
            "side": pa.array(np.ones(batch.num_rows, dtype=np.int32)),
            "place": batch["seq"],
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
