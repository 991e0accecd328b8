"""Check the rows that a function of the user returns, before anything is written.

Only the column `origin` identifies a row, so the function may change the other columns. A row with
an origin that was not read is an error: no later run could find its message.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import encode_headers, parse_times
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.row_check import find_invalid_row
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.tasks.origin_task import OriginTask, find_existing
from jsplan.backfill.tasks.partitioning import PartitionPlan, choose_partitions
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import RefusedError
from jsplan.planning.backfill.model import SeqRange

#: A message with its partition and its origin.
PARTITIONED_SCHEMA: Final = pa.schema(
    [("partition_number", pa.int32()), ("origin_number", pa.int32()), *MESSAGE_SCHEMA]
)
_ORIGIN_PATTERN: Final = r"^(?P<stream>[^/]+/[^/]+)/(?P<seq>[0-9]{1,18})/(?P<time>[^/]+)$"


def check_returned_rows(plan: PartitionPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows with `origin`, `subject`, `headers` and `data` to `PARTITIONED_SCHEMA`.

    Raises RefusedError for the first row that is not a valid message.
    """
    origins = _to_bytes(batch["origin"])
    numbers, seqs, times = _parse_origins(plan, origins)
    subject, headers, data = (
        _to_bytes(batch["subject"]),
        _to_list(batch["headers"]),
        _to_bytes(batch["data"]),
    )
    if (found := find_invalid_row(subject, headers, data)) is not None:
        raise _build_refusal(plan, origins, *found)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(seqs), pa.array(times), subject.view(BYTES), encode_headers(headers), data],
        schema=MESSAGE_SCHEMA,
    )
    return _add_partition_numbers(plan, numbers, rows)


def _parse_origins(plan: PartitionPlan, origins: pa.Array) -> tuple[SeqArray, SeqArray, SeqArray]:
    """Return the origin number, sequence and time of each row."""
    found = pc.extract_regex(pc.fill_null(origins, b""), pattern=_ORIGIN_PATTERN)
    _require_read(plan, origins, found.is_valid())
    stream, seq = pc.struct_field(found, "stream"), pc.struct_field(found, "seq")
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    times = parse_times(pc.struct_field(found, "time"), invalid=0)
    numbers = _match_origins(plan, stream, seqs)
    was_read = numbers >= 0
    for origin_number in np.unique(numbers[was_read]):
        selected = numbers == origin_number
        was_read[selected] &= ~find_existing(
            plan.origin_tasks[origin_number].existing, seqs[selected], times[selected]
        ) & (times[selected] > 0)
    _require_read(plan, origins, pa.array(was_read))
    return numbers, seqs, times


def _match_origins(plan: PartitionPlan, streams: pa.Array, seqs: SeqArray) -> SeqArray:
    """Return the origin number of each row; -1 for a message that was not read."""
    numbers: dict[bytes, list[tuple[int, OriginTask]]] = {}
    for number, origin in enumerate(plan.origin_tasks):
        numbers.setdefault(f"{origin.domain}/{origin.stream}".encode(), []).append((number, origin))
    encoded, matched = pc.dictionary_encode(streams), np.full(len(seqs), -1, dtype=np.int64)
    codes = encoded.indices.to_numpy()
    for code, stream in enumerate(encoded.dictionary.to_pylist()):
        for number, origin in numbers.get(stream, []):
            matched[(codes == code) & _select_inside(seqs, origin.spans)] = number
    return matched


def _select_inside(seqs: SeqArray, spans: tuple[SeqRange, ...]) -> np.ndarray[Any, Any]:
    firsts, lasts = (np.array([span[end] for span in spans], dtype=np.int64) for end in (0, 1))
    place = np.searchsorted(firsts, seqs, side="right") - 1
    inside: np.ndarray[Any, Any] = (
        (place >= 0) & (seqs <= lasts[np.maximum(place, 0)])
        if len(spans)
        else np.zeros(len(seqs), dtype=bool)
    )
    return inside


def _require_read(plan: PartitionPlan, origins: pa.Array, was_read: pa.Array) -> None:
    good = pc.fill_null(was_read, False)
    if not pc.all(good).as_py():
        row = int(np.argmin(good.to_numpy(zero_copy_only=False)))
        raise _build_refusal(
            plan,
            origins,
            row,
            "an origin that was not read",
            hint="Leave the column `origin` unchanged, and return no other rows.",
        )


def _build_refusal(
    plan: PartitionPlan, origins: pa.Array, row: int, problem: str, hint: str | None = None
) -> RefusedError:
    origin = origins[row].as_py()
    shown = origin.decode(errors="replace") if origin is not None else "no origin"
    return RefusedError(
        f"transform {plan.transform} returned a row ({shown}) with {problem}. "
        "Nothing of this attempt was copied",
        hint=hint,
    )


def _add_partition_numbers(
    plan: PartitionPlan, numbers: SeqArray, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """Rename the subjects of the rows, and add the partition of each."""
    transform, parts = (
        plan.subject_transform.compile() if plan.subject_transform is not None else None,
        [],
    )
    for number in np.unique(numbers):
        origin, selected = plan.origin_tasks[number], rows.filter(pa.array(numbers == number))
        selected = rename_subjects(selected, transform, origin.domain, origin.stream)
        partitions = choose_partitions(
            plan, int(number), selected["seq"].to_numpy(), selected["subject"]
        )
        columns = [
            pa.array(partitions, pa.int32()),
            pa.array(np.full(selected.num_rows, number), pa.int32()),
            *selected.columns,
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=PARTITIONED_SCHEMA))
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def _to_bytes(column: pa.Array) -> pa.BinaryArray:
    """Convert text and bytes to binary columns. Spark may return larger offsets."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary()).cast(BYTES)
    return column.view(BYTES) if pa.types.is_string(column.type) else column


def _to_list(column: pa.Array) -> pa.ListArray:
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return column
