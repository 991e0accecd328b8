"""Read both sides of a partitioned or transformed copy for verification.

The target's side, and the presence of messages at the origins.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import field

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.rows.message_rows import (
    LATE,
    NO_ORIGIN,
    REPAIRED,
    ROW_SCHEMA,
    ComparedOrigin,
    OrderTracker,
    build_request,
    extract_copied_rows,
    extract_sourced_rows,
)
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.target_scan import group_by_origin

_PRESENCE_SIDE: Final = 2


class SubjectOrderTracker(OrderTracker):
    """Order tracker per subject."""

    trackers: dict[bytes, OrderTracker] = field(default_factory=dict)

    def mark_rows(
        self, names: pa.Array, seqs: SeqArray, subjects: pa.BinaryArray
    ) -> np.ndarray[Any, Any]:
        """Return LATE or REPAIRED for each row, within its subject."""
        marks = np.zeros(len(seqs), dtype=np.int64)
        encoded = pc.dictionary_encode(subjects)
        codes = encoded.indices.to_numpy()
        places = np.argsort(codes, kind="stable")
        cuts = np.searchsorted(codes[places], np.arange(len(encoded.dictionary) + 1))
        for code, subject in enumerate(encoded.dictionary.to_pylist()):
            of_subject = places[cuts[code] : cuts[code + 1]]
            marks[of_subject] = self.trackers.setdefault(subject, OrderTracker()).mark_rows(
                names.take(pa.array(of_subject)), seqs[of_subject], subjects
            )
        return marks


class UnorderedTracker(OrderTracker):
    """Order tracker that accepts any order."""

    def mark_rows(
        self,
        names: pa.Array,  # noqa: ARG002 - the signature of `OrderTracker`
        seqs: SeqArray,
        subjects: pa.BinaryArray,  # noqa: ARG002 - as above
    ) -> np.ndarray[Any, Any]:
        """Return no mark."""
        return np.zeros(len(seqs), dtype=np.int64)


_TRACKERS: Final = {
    "stream": OrderTracker,
    "subject": SubjectOrderTracker,
    "none": UnorderedTracker,
}


def read_partitioned_rows(
    endpoint: Endpoint, request: ReadRequest, origins: Sequence[ComparedOrigin], order: str
) -> Iterator[pa.RecordBatch]:
    """Read the target's side of any number of origins, like `read_target_rows`.

    Raises the errors of `read`.
    """
    orders, others = {origin.number: _TRACKERS[order]() for origin in origins}, 0
    for rows in read(endpoint.open, request):
        batches = list(_extract_rows(rows, origins, orders))
        yield from batches
        others += rows.num_rows - sum(batch.num_rows for batch in batches)
    summary = dict.fromkeys(ROW_SCHEMA.names, 0) | {
        "origin_number": NO_ORIGIN,
        "side": 1,
        "place": others,
        "said": None,
    }
    yield pa.RecordBatch.from_pylist([summary], schema=ROW_SCHEMA)


def _extract_rows(
    rows: pa.RecordBatch, origins: Sequence[ComparedOrigin], orders: dict[int, OrderTracker]
) -> Iterator[pa.RecordBatch]:
    masks = group_by_origin(rows["headers"])
    for origin in origins:
        batches = [extract_sourced_rows(origin, rows, name) for name in origin.source_names]
        if f"{origin.domain}/{origin.stream}" in masks:
            batches.append(extract_copied_rows(origin, rows, orders[origin.number]))
        yield from (batch for batch in batches if batch is not None and batch.num_rows)


def read_presence_rows(endpoint: Endpoint, origin: ComparedOrigin) -> Iterator[pa.RecordBatch]:
    """Read which messages the origin has. Raises the errors of `read`."""
    for rows in read(endpoint.open, build_request(endpoint, origin, headers_only=True)):
        yield to_presence_rows(origin, rows["seq"].to_numpy())


def to_presence_rows(origin: ComparedOrigin, seqs: SeqArray) -> pa.RecordBatch:
    """Build rows that say that the origin has these messages."""
    count = len(seqs)
    columns = dict.fromkeys(ROW_SCHEMA.names, np.zeros(count, dtype=np.int64)) | {
        "seq": seqs,
        "origin_number": np.full(count, origin.number),
    }
    columns |= {"side": np.full(count, _PRESENCE_SIDE), "said": pa.nulls(count, pa.string())}
    return pa.RecordBatch.from_arrays(
        [pa.array(columns[kind.name]).cast(kind.type) for kind in ROW_SCHEMA], schema=ROW_SCHEMA
    )


__all__ = [
    "LATE",
    "REPAIRED",
    "SubjectOrderTracker",
    "UnorderedTracker",
    "read_partitioned_rows",
    "read_presence_rows",
    "to_presence_rows",
]
