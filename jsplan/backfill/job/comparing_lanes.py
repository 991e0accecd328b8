"""What verify reads of a copy whose messages were shaped, or came in lanes: the target's side, and which messages the origins have."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.job.comparing import LATE, NONE, REPAIRED, ROWS, Compared, Order, copied, native
from jsplan.backfill.job.fleets import origins_in
from jsplan.backfill.job.ways import Way
from jsplan.backfill.sequence_arrays import Sequences
from jsplan.backfill.wire import read
from jsplan.backfill.wire.reading import Range

_SIDE: Final = 2


@dataclass(slots=True)
class BySubject(Order):
    """The same for each subject of its own; `subjects` are those of the rows that come next."""

    subjects: pa.BinaryArray | None = None
    each: dict[bytes, Order] = field(default_factory=dict)

    def marks(self, names: pa.Array, seqs: Sequences) -> np.ndarray[Any, Any]:
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
            found[mine] = self.each.setdefault(subject, Order()).marks(names.take(pa.array(mine)), seqs[mine])
        return found


@dataclass(slots=True)
class NoOrder(Order):
    """Any order is right."""

    def marks(self, names: pa.Array, seqs: Sequences) -> np.ndarray[Any, Any]:  # noqa: ARG002 - it is what `Order` has
        """Nothing."""
        return np.zeros(len(seqs), dtype=np.int64)


_ORDERS: Final = {"stream": Order, "subject": BySubject, "none": NoOrder}


def lane_rows(way: Way, stream: str, first: int, last: int, legs: Sequence[Compared], order: str) -> Iterator[pa.RecordBatch]:
    """The target's side, as `comparing.target_rows`, of any number of origins. Raises what `wire.read` raises."""
    orders, others = {leg.number: _ORDERS[order]() for leg in legs}, 0
    for rows in read(way.open, Range(way.api_prefix, stream, first, last)) if first <= last else ():
        found = list(_found(rows, legs, orders))
        yield from found
        others += rows.num_rows - sum(batch.num_rows for batch in found)
    none = dict.fromkeys(ROWS.names, 0) | {"leg": NONE, "side": 1, "place": others, "said": None}
    yield pa.RecordBatch.from_pylist([none], schema=ROWS)


def _found(rows: pa.RecordBatch, legs: Sequence[Compared], orders: dict[int, Order]) -> Iterator[pa.RecordBatch]:
    there = origins_in(rows["headers"])
    for leg in legs:
        batches = [native(leg, rows, name) for name in leg.natives]
        if f"{leg.domain}/{leg.stream}" in there:
            order = orders[leg.number]
            if isinstance(order, BySubject):
                order.subjects = rows["subject"].filter(there[f"{leg.domain}/{leg.stream}"])
            batches.append(copied(leg, rows, order))
        yield from (batch for batch in batches if batch is not None and batch.num_rows)


def present_rows(way: Way, leg: Compared) -> Iterator[pa.RecordBatch]:
    """Which messages the origin has. Raises what `wire.read` raises."""
    if leg.first > leg.last:
        return
    for rows in read(way.open, Range(way.api_prefix, leg.stream, leg.first, leg.last, leg.filters, headers_only=True)):
        yield present(leg, rows["seq"].to_numpy())


def present(leg: Compared, seqs: Sequences) -> pa.RecordBatch:
    """What says of these messages that the origin has them."""
    count = len(seqs)
    columns = dict.fromkeys(ROWS.names, np.zeros(count, dtype=np.int64)) | {"seq": seqs, "leg": np.full(count, leg.number)}
    columns |= {"side": np.full(count, _SIDE), "said": pa.nulls(count, pa.string())}
    return pa.RecordBatch.from_arrays([pa.array(columns[kind.name]).cast(kind.type) for kind in ROWS], schema=ROWS)


__all__ = ["LATE", "REPAIRED", "BySubject", "NoOrder", "lane_rows", "present", "present_rows"]
