"""Both sides of a comparison, read as rows of one format, each side once, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct, field

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.rows.message_rows import (
    AT_TARGET,
    IMPOSSIBLE,
    LATE,
    NO_ORIGIN,
    PRESENT,
    ComparedOrigin,
    OrderTracker,
    build_rows,
    extract_copied_rows,
    extract_sourced_rows,
    to_stored_rows,
)
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import parse_origins
from jsplan.backfill.tasks.origin_task import OriginTask, read_messages
from jsplan.backfill.tasks.partitioning import PartitionPlan

#: Reads rows of one side, in batches of `ROW_SCHEMA`. May raise JsplanError.
SideReader = Callable[[], Iterator[pa.RecordBatch]]
#: Finds for each origin the sequence below which everything has expired at the target.
FloorFinder = Callable[[], dict[int, int]]


class Comparison(Struct):
    """Both sides of an entry, and how their messages are matched.

    `readers` read the rows of both sides. With a `plan` it makes the expected messages, and of the
    origins `readers` only read which messages they have. `find_floors` finds for each origin the
    sequence below which everything has expired at the target by now (0: none). It is None if
    nothing expires there. `is_transformed`: what a source of the target delivers has another
    content than a copy.
    """

    origins: list[ComparedOrigin] = field(default_factory=list)
    readers: list[SideReader] = field(default_factory=list)
    plan: PartitionPlan | None = None
    find_floors: FloorFinder | None = None
    is_transformed: bool = False


def read_origin_rows(
    task: OriginTask, origin: ComparedOrigin, *, is_presence: bool = False
) -> Iterator[pa.RecordBatch]:
    """Read the messages of an origin, a stream or an archive; or only which ones it has.

    Raises the errors of `read`, and RefusedError for a changed file.
    """
    for rows in read_messages(task, headers_only=is_presence):
        if is_presence:
            seq = rows["seq"].to_numpy()
            yield build_rows(origin.number, seq, PRESENT)
        else:
            yield to_stored_rows(origin, rows)


def read_kept_rows(task: OriginTask, origin: ComparedOrigin) -> Iterator[pa.RecordBatch]:
    """Read a target whose messages keep their sequences: an archive, or a restored stream.

    Raises the errors of `read_origin_rows`.
    """
    last = 0
    for rows in read_messages(task):
        seq = rows["seq"].to_numpy()
        highest = np.maximum.accumulate(np.concatenate([[last], seq]))
        mark = np.where(seq > origin.last_possible_seq, IMPOSSIBLE, 0)
        mark |= np.where(seq < highest[:-1], LATE, 0)
        last = int(highest[-1])
        yield to_stored_rows(origin, rows, AT_TARGET, seq, mark)


def read_target_rows(
    endpoint: Endpoint, request: ReadRequest, origins: Sequence[ComparedOrigin], order: str
) -> Iterator[pa.RecordBatch]:
    """Read the messages of all origins in a target, then the number of other messages.

    Raises the errors of `read`.
    """
    trackers, others = {origin.number: OrderTracker(order) for origin in origins}, 0
    for rows in read(endpoint.open, request):
        batches = list(_extract_rows(rows, origins, trackers))
        yield from batches
        others += rows.num_rows - sum(batch.num_rows for batch in batches)
    yield build_rows(NO_ORIGIN, np.zeros(1, dtype=np.int64), AT_TARGET, place=np.array([others]))


def _extract_rows(
    rows: pa.RecordBatch, origins: Sequence[ComparedOrigin], trackers: dict[int, OrderTracker]
) -> Iterator[pa.RecordBatch]:
    # One search for all names costs less than one for each of many origins, and more than one.
    names = parse_origins(rows["headers"])[0].unique().to_pylist() if len(origins) > 1 else None
    for origin in origins:
        batches = [extract_sourced_rows(origin, rows, name) for name in origin.source_names]
        if names is None or origin.name in names:
            batches.append(extract_copied_rows(origin, rows, trackers[origin.number]))
        yield from (batch for batch in batches if batch is not None and batch.num_rows)
