"""What verify reads of a copy whose messages were shaped, or came in lanes: the target's side, and which messages the origins have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.multi_origin_scan import group_by_origin
from jsplan.backfill.verify.message_rows import (
    LATE,
    NO_ORIGIN,
    REPAIRED,
    ROW_SCHEMA,
    ComparedOrigin,
    OrderTracker,
    extract_copied_rows,
    extract_sourced_rows,
)

_PRESENCE_SIDE: Final = 2


@dataclass(slots=True)
class SubjectOrderTracker(OrderTracker):
    """The same for each subject of its own; `subjects` are those of the rows that come next."""

    subjects: pa.BinaryArray | None = None
    trackers: dict[bytes, OrderTracker] = field(default_factory=dict)

    def mark_rows(self, names: pa.Array, seqs: SeqArray) -> np.ndarray[Any, Any]:
        """LATE or REPAIRED for each row, among those of its subject."""
        found = np.zeros(len(seqs), dtype=np.int64)
        if self.subjects is None or len(self.subjects) != len(seqs):
            return found
        encoded = pc.dictionary_encode(self.subjects)
        codes = encoded.indices.to_numpy()
        places = np.argsort(codes, kind="stable")
        cuts = np.searchsorted(codes[places], np.arange(len(encoded.dictionary) + 1))
        for code, subject in enumerate(encoded.dictionary.to_pylist()):
            mine = places[cuts[code] : cuts[code + 1]]
            found[mine] = self.trackers.setdefault(subject, OrderTracker()).mark_rows(
                names.take(pa.array(mine)), seqs[mine]
            )
        return found


@dataclass(slots=True)
class UnorderedTracker(OrderTracker):
    """Any order is right."""

    def mark_rows(self, names: pa.Array, seqs: SeqArray) -> np.ndarray[Any, Any]:  # noqa: ARG002 - it is what `OrderTracker` has
        """Nothing."""
        return np.zeros(len(seqs), dtype=np.int64)


_TRACKERS: Final = {
    "stream": OrderTracker,
    "subject": SubjectOrderTracker,
    "none": UnorderedTracker,
}


def read_partitioned_rows(
    endpoint: Endpoint,
    stream: str,
    first: int,
    last: int,
    legs: Sequence[ComparedOrigin],
    order: str,
) -> Iterator[pa.RecordBatch]:
    """The target's side, as `comparing.target_rows`, of any number of origins. Raises what `wire.read` raises."""
    orders, others = {leg.number: _TRACKERS[order]() for leg in legs}, 0
    for rows in (
        read(endpoint.open, ReadRequest(endpoint.api_prefix, stream, first, last))
        if first <= last
        else ()
    ):
        found = list(_extract_rows(rows, legs, orders))
        yield from found
        others += rows.num_rows - sum(batch.num_rows for batch in found)
    none = dict.fromkeys(ROW_SCHEMA.names, 0) | {
        "leg": NO_ORIGIN,
        "side": 1,
        "place": others,
        "said": None,
    }
    yield pa.RecordBatch.from_pylist([none], schema=ROW_SCHEMA)


def _extract_rows(
    rows: pa.RecordBatch, legs: Sequence[ComparedOrigin], orders: dict[int, OrderTracker]
) -> Iterator[pa.RecordBatch]:
    there = group_by_origin(rows["headers"])
    for leg in legs:
        batches = [extract_sourced_rows(leg, rows, name) for name in leg.source_names]
        if f"{leg.domain}/{leg.stream}" in there:
            order = orders[leg.number]
            if isinstance(order, SubjectOrderTracker):
                order.subjects = rows["subject"].filter(there[f"{leg.domain}/{leg.stream}"])
            batches.append(extract_copied_rows(leg, rows, order))
        yield from (batch for batch in batches if batch is not None and batch.num_rows)


def read_presence_rows(endpoint: Endpoint, leg: ComparedOrigin) -> Iterator[pa.RecordBatch]:
    """Which messages the origin has. Raises what `wire.read` raises."""
    if leg.first > leg.last:
        return
    for rows in read(
        endpoint.open,
        ReadRequest(
            endpoint.api_prefix, leg.stream, leg.first, leg.last, leg.filters, headers_only=True
        ),
    ):
        yield to_presence_rows(leg, rows["seq"].to_numpy())


def to_presence_rows(leg: ComparedOrigin, seqs: SeqArray) -> pa.RecordBatch:
    """What says of these messages that the origin has them."""
    count = len(seqs)
    columns = dict.fromkeys(ROW_SCHEMA.names, np.zeros(count, dtype=np.int64)) | {
        "seq": seqs,
        "leg": np.full(count, leg.number),
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
