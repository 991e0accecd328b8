"""Compare the messages of a range on both sides after a native copy.

Each message is compared by a hash of what a copy preserves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.rows.message_rows import (
    NO_ORIGIN,
    ComparedOrigin,
    read_origin_rows,
    read_target_rows,
)
from jsplan.backfill.seq_arrays import SeqArray, group_into_ranges
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.planning.backfill.model import SeqRange

_EMPTY: Final = np.empty(0, dtype=np.int64)


class Tally(Struct):
    """Origin sequences and hashes, in the order of reading."""

    seqs: SeqArray = field(default_factory=lambda: _EMPTY)
    digests: SeqArray = field(default_factory=lambda: _EMPTY)

    def add(self, batches: Iterable[pa.RecordBatch]) -> int:
        """Add rows, and return their number."""
        filled = [
            batch
            for batch in batches
            if batch.num_rows and batch["origin_number"][0].as_py() != NO_ORIGIN
        ]
        self.seqs = np.concatenate([self.seqs, *(batch["seq"].to_numpy() for batch in filled)])
        self.digests = np.concatenate(
            [self.digests, *(batch["digest"].to_numpy() for batch in filled)]
        )
        return sum(batch.num_rows for batch in filled)

    @property
    def last(self) -> int:
        """Highest sequence; 0 if there is none."""
        return int(self.seqs.max(initial=0))


class NativeComparison(Struct, frozen=True):
    """Result of a comparison.

    `missing` are at the origin but not in the target. `first_difference` is the first message that
    differs (0: none). `duplicates` counts messages that are in the target more than once.
    `in_order`: no message precedes an earlier one.
    """

    missing: list[SeqRange]
    first_difference: int
    duplicates: int
    in_order: bool


def compare_tallies(origin: Tally, target: Tally) -> NativeComparison:
    """Compare both sides. Messages that only the target has were at the origin when copied."""
    seqs, first = np.unique(target.seqs, return_index=True)
    both, at_origin, at_target = np.intersect1d(
        origin.seqs, seqs, assume_unique=True, return_indices=True
    )
    unequal = both[origin.digests[at_origin] != target.digests[first][at_target]]
    missing = group_into_ranges(np.setdiff1d(origin.seqs, seqs, assume_unique=True))
    in_order = bool((np.diff(target.seqs) > 0).all())
    return NativeComparison(
        missing, int(unequal[0]) if len(unequal) else 0, len(target.seqs) - len(seqs), in_order
    )


def tally_origin(endpoint: Endpoint, origin: ComparedOrigin) -> Tally:
    """Tally the messages of the origin. Raises the errors of `read`."""
    tally = Tally()
    tally.add(read_origin_rows(endpoint, origin))
    return tally


def tally_sourced(
    tally: Tally, endpoint: Endpoint, stream: str, first: int, last: int, origin: ComparedOrigin
) -> bool:
    """Add the messages that the target's own sources delivered between two of its sequences.

    Returns False if there are none. Raises the errors of `read`.
    """
    request = ReadRequest(endpoint.api_prefix, stream, first, last)
    return tally.add(read_target_rows(endpoint, request, (origin,))) > 0


def read_restored_rows(
    endpoint: Endpoint, stream: str, origin: ComparedOrigin
) -> Iterator[pa.RecordBatch]:
    """Read the target's side of an origin whose messages have their original sequences.

    Raises the errors of `read`.
    """
    target = replace(origin, stream=stream, skipped=(), filters=(), known=None)
    for batch in read_origin_rows(endpoint, target):
        columns: dict[str, Any] = {name: batch[name] for name in batch.schema.names}
        columns |= {
            "side": pa.array(np.ones(batch.num_rows, dtype=np.int32)),
            "place": batch["seq"],
        }
        yield pa.RecordBatch.from_arrays(list(columns.values()), schema=batch.schema)
