"""Both sides of a comparison, as data that the driver sends to the readers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from msgspec import Struct, field

from jsplan.backfill.rows.message_rows import ComparedOrigin
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
