"""Checks what a user's function made of messages, row by row, before anything is written: who each row is, and that it is a message.

A row is known by its column `origin` alone. So a function may do with the other columns what it wants, and an origin that was never read
is an error, not a message that nobody could ever find again.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.message_schema import encode_headers
from jsplan.backfill.protocol import MESSAGE_SCHEMA
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.protocol.stream_info import parse_time
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks.copy import CopyTask, find_existing
from jsplan.backfill.tasks.partitioning import PartitionPlan, choose_partitions
from jsplan.backfill.tasks.subject_transform import rename_subjects
from jsplan.errors import RefusedError

#: A message on its way to its lane.
PARTITIONED_SCHEMA: Final = pa.schema([("lane", pa.int32()), ("leg", pa.int32()), *MESSAGE_SCHEMA])
_ORIGIN_PATTERN: Final = r"^(?P<stream>[^/]+/[^/]+)/(?P<seq>[0-9]{1,18})/(?P<time>[^/]+)$"
#: What no subject has: blanks, empty parts, wildcards.
_INVALID_SUBJECT: Final = r"[\x00-\x20]|^$|^\.|\.$|\.\.|(?:^|\.)[*>](?:\.|$)"
_INVALID_HEADER_NAME: Final = r"^$|[\x00-\x20:]"


def check_returned_rows(job: PartitionPlan, batch: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with `origin`, `subject`, `headers` and `data` as `PARTITIONED_SCHEMA`. Raises RefusedError that names the first row that is no message."""
    who = _to_bytes(batch["origin"])
    legs, seqs, times = _parse_origins(job, who)
    subject, headers, data = (
        _to_bytes(batch["subject"]),
        _to_list(batch["headers"]),
        _to_bytes(batch["data"]),
    )
    _require_rows(job, who, subject.is_valid(), "no subject")
    _require_rows(
        job,
        who,
        pc.invert(pc.match_substring_regex(subject, _INVALID_SUBJECT)),
        "a subject that messages cannot have",
        subject,
    )
    _require_rows(job, who, data.is_valid(), "no data; an empty payload is X''")
    _require_headers(job, who, headers)
    rows = pa.RecordBatch.from_arrays(
        [pa.array(seqs), pa.array(times), subject.view(BYTES), encode_headers(headers), data],
        schema=MESSAGE_SCHEMA,
    )
    return _add_partition_numbers(job, legs, rows)


def _parse_origins(job: PartitionPlan, who: pa.Array) -> tuple[SeqArray, SeqArray, SeqArray]:
    """Number of the origin, sequence and time of each row."""
    found = pc.extract_regex(pc.fill_null(who, b""), pattern=_ORIGIN_PATTERN)
    _require_rows(job, who, found.is_valid(), "another origin than it was given", who)
    stream, seq = pc.struct_field(found, "stream"), pc.struct_field(found, "seq")
    seqs = pc.cast(seq.view(pa.string()), pa.int64()).to_numpy()
    try:
        times = np.fromiter(
            (parse_time(text.decode()) for text in pc.struct_field(found, "time").to_pylist()),
            dtype=np.int64,
        )
    except ValueError:
        times = np.zeros(len(seqs), dtype=np.int64)
    legs = _match_origins(job, stream, seqs)
    given = legs >= 0
    for number in np.unique(legs[given]):
        mine = legs == number
        given[mine] &= ~find_existing(job.origin_tasks[number].known, seqs[mine], times[mine]) & (
            times[mine] > 0
        )
    _require_rows(job, who, pa.array(given), "another origin than it was given", who)
    return legs, seqs, times


def _match_origins(job: PartitionPlan, streams: pa.Array, seqs: SeqArray) -> SeqArray:
    """Which origin each row is of; -1: none that was read."""
    numbers: dict[bytes, list[tuple[int, CopyTask]]] = {}
    for number, leg in enumerate(job.origin_tasks):
        numbers.setdefault(f"{leg.domain}/{leg.stream}".encode(), []).append((number, leg))
    encoded, found = pc.dictionary_encode(streams), np.full(len(seqs), -1, dtype=np.int64)
    codes = encoded.indices.to_numpy()
    for code, stream in enumerate(encoded.dictionary.to_pylist()):
        for number, leg in numbers.get(stream, []):
            found[(codes == code) & _select_inside(seqs, leg.spans)] = number
    return found


def _select_inside(seqs: SeqArray, spans: tuple[SeqRange, ...]) -> np.ndarray[Any, Any]:
    firsts, lasts = (np.array([span[end] for span in spans], dtype=np.int64) for end in (0, 1))
    place = np.searchsorted(firsts, seqs, side="right") - 1
    found: np.ndarray[Any, Any] = (
        (place >= 0) & (seqs <= lasts[np.maximum(place, 0)])
        if len(spans)
        else np.zeros(len(seqs), dtype=bool)
    )
    return found


def _require_headers(job: PartitionPlan, who: pa.Array, headers: pa.ListArray) -> None:
    fields = headers.flatten()
    name, value = (_to_bytes(pc.struct_field(fields, part)) for part in ("name", "value"))
    good = pc.and_(
        pc.fill_null(pc.invert(pc.match_substring_regex(name, _INVALID_HEADER_NAME)), False),
        pc.invert(pc.match_substring_regex(pc.fill_null(value, b""), r"[\r\n]")),
    )
    if not pc.all(good).as_py():
        rows = pc.list_parent_indices(headers).to_numpy()
        bad = np.zeros(len(who), dtype=bool)
        bad[rows[~good.to_numpy(zero_copy_only=False)]] = True
        _require_rows(job, who, pa.array(~bad), "a header that messages cannot have")


def _require_rows(
    job: PartitionPlan, who: pa.Array, good: pa.Array, what: str, shown: pa.Array | None = None
) -> None:
    good = pc.fill_null(good, False)
    if pc.all(good).as_py():
        return
    place = int(np.argmin(good.to_numpy(zero_copy_only=False)))
    origin, value = (
        who[place].as_py(),
        shown[place].as_py() if shown is not None and shown is not who else None,
    )
    of = origin.decode(errors="replace") if origin is not None else "no origin"
    said = f": {value.decode(errors='replace')!r}" if value is not None else ""
    hint = (
        "It has to leave the column `origin` as it is, and return no row of its own."
        if "origin" in what
        else None
    )
    raise RefusedError(
        f"transform {job.transform} returns a row ({of}) with {what}{said}. Nothing of this attempt was copied",
        hint=hint,
    )


def _add_partition_numbers(
    job: PartitionPlan, legs: SeqArray, rows: pa.RecordBatch
) -> pa.RecordBatch:
    """The rows under their last subjects, with the lane of each."""
    mapping, parts = (
        job.subject_transform.compile() if job.subject_transform is not None else None,
        [],
    )
    for number in np.unique(legs):
        leg, mine = job.origin_tasks[number], rows.filter(pa.array(legs == number))
        mine = rename_subjects(mine, mapping, leg.domain, leg.stream)
        lanes = choose_partitions(job, int(number), mine["seq"].to_numpy(), mine["subject"])
        columns = [
            pa.array(lanes, pa.int32()),
            pa.array(np.full(mine.num_rows, number), pa.int32()),
            *mine.columns,
        ]
        parts.append(pa.RecordBatch.from_arrays(columns, schema=PARTITIONED_SCHEMA))
    return pa.concat_batches(parts) if len(parts) > 1 else parts[0]


def _to_bytes(column: pa.Array) -> pa.BinaryArray:
    """Texts and bytes as the bytes that messages have; Spark may hand over larger offsets."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        return column.cast(pa.large_binary()).cast(BYTES)
    return column.view(BYTES) if pa.types.is_string(column.type) else column


def _to_list(column: pa.Array) -> pa.ListArray:
    if pa.types.is_large_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return column
