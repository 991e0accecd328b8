"""Read a target that was restored from a snapshot as a side of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from jsplan.backfill.rows.message_rows import ComparedOrigin, read_origin_rows
from jsplan.backfill.tasks.endpoints import Endpoint


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
