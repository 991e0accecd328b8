"""Check the rows that a function of the user returns, before anything is written.

Only the column `origin` identifies a row, so the function may change the other columns. A row with
an origin that was not read is an error: no later run could find its message.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import encode_headers, parse_times, to_bytes
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.protocol.row_check import find_invalid_row
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.origin_task import find_existing, select_inside
from jsplan.backfill.tasks.partitioning import PartitionPlan, add_partition_numbers
from jsplan.errors import RefusedError

_ORIGIN_PATTERN: Final = r"^(?P<stream>[^/]+/[^/]+)/(?P<seq>[0-9]{1,18})/(?P<time>[^/]+)$"


def check_returned_rows(plan: PartitionPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows with `origin`, `subject`, `headers` and `data` to `PARTITIONED_SCHEMA`.

    Raises RefusedError for the first row that is not a valid message. That a message is returned
    twice is found by writers and by the driver, who know all rows.
    """
    origins, subject, data = (to_bytes(batch[name]) for name in ("origin", "subject", "data"))
    headers = batch["headers"]
    if pa.types.is_large_list(headers.type):
        headers = headers.cast(pa.list_(headers.type.value_type))
    numbers, seqs, times = _parse_origins(plan, origins)
    if (numbers < 0).any():
        raise _build_refusal(
            plan,
            origins,
            int(np.argmin(numbers)),
            "an origin that was not read",
            hint="Leave the column `origin` unchanged, and return no other rows.",
        )
    if (found := find_invalid_row(subject, headers, data)) is not None:
        raise _build_refusal(plan, origins, *found)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(seqs), pa.array(times), subject, encode_headers(headers), data],
        schema=MESSAGE_SCHEMA,
    )
    return add_partition_numbers(plan, numbers, rows)


def _parse_origins(plan: PartitionPlan, origins: pa.Array) -> tuple[SeqArray, SeqArray, SeqArray]:
    """Return origin number (-1: not one that was read), sequence and time of each row."""
    found = pc.extract_regex(pc.fill_null(origins, b""), pattern=_ORIGIN_PATTERN)
    stream, seq, time = (pc.struct_field(found, part) for part in ("stream", "seq", "time"))
    seqs = pc.fill_null(seq.view(pa.string()).cast(pa.int64()), 0).to_numpy()
    times = parse_times(pc.fill_null(time, b""), invalid=0)
    numbers = np.full(len(seqs), -1, dtype=np.int64)
    for number, task in enumerate(plan.origin_tasks):
        own = pc.equal(stream, f"{task.domain}/{task.stream}".encode())
        was_read = pc.fill_null(own, False).to_numpy(zero_copy_only=False) & (times > 0)
        was_read &= select_inside(seqs, task.spans) & ~find_existing(task.existing, seqs, times)
        numbers[was_read] = number
    return numbers, seqs, times


def _build_refusal(
    plan: PartitionPlan, origins: pa.Array, row: int, problem: str, hint: str | None = None
) -> RefusedError:
    origin = origins[row].as_py()
    shown = origin.decode(errors="replace") if origin is not None else "no origin"
    return RefusedError(
        f"transform {plan.transforms.transform} returned a row ({shown}) with {problem}. "
        "Nothing of this attempt was copied",
        hint=hint,
    )
