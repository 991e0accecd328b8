"""The Arrow schema of messages, and the headers that a copy adds, for whole columns at once.

Texts keep their bytes: subjects and header values that are not UTF-8 are not changed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jsplan.backfill.protocol.columns import get_buffers
from jsplan.backfill.protocol.frames import BYTES, append_header_lines, concat_rows, format_numbers
from jsplan.backfill.seq_arrays import SeqArray
from jsplan.resources.source_header import KEPT_PREFIX, ORIGIN_HEADER
from jsplan.units import SECOND, parse_instant

#: Headers that servers act on. Patterns stand for all headers with that prefix.
CONTROL_HEADERS: Final = (
    "Nats-Msg-Id", "Nats-Rollup", "Nats-TTL", "Nats-Marker-Reason", "Nats-Incr",
    "Nats-Expected-[^:\r]*", "Nats-Batch-[^:\r]*", "Nats-Schedule[^:\r]*", "Nats-Scheduler",
    "Nats-Required-Api-Level", "Nats-Stream-Source",
)  # fmt: skip
#: The previous origin of a message that was copied before.
KEPT_ORIGIN_HEADER: Final = f"{KEPT_PREFIX}Origin"
_CONTROL_LINE: Final = f"(?i)\r\n({'|'.join(CONTROL_HEADERS)}):"
_ORIGIN_LINE: Final = f"\r\n{ORIGIN_HEADER}: ?(?P<origin>[^\r]*)"
#: Arrow needs an end for a slice; no text is longer.
_TO_END: Final = 1 << 30

HEADERS_TYPE: Final = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
TABLE_SCHEMA: Final = pa.schema(
    [
        ("domain", pa.string()),
        ("stream", pa.string()),
        ("seq", pa.int64()),
        ("time", pa.int64()),
        ("subject", pa.string()),
        ("headers", HEADERS_TYPE),
        ("data", pa.binary()),
        ("origin", pa.string()),
    ]
)


def contains_bytes(column: pa.BinaryArray, text: bytes, *, lower: bool = False) -> bool:
    """Check whether a text occurs in a column, with one search over all of its bytes.

    `lower` compares with the column in lower case.
    """
    if not len(column):
        return False
    view, offsets = get_buffers(column)
    found = view[int(offsets[0]) : int(offsets[-1])].tobytes()
    return text in (found.lower() if lower else found)


def parse_times(texts: pa.Array, *, invalid: int) -> SeqArray:
    """Parse RFC 3339 times, as text or bytes, to ns since 1970; `invalid` for anything else."""
    try:
        parsed = texts.cast(pa.string()).cast(pa.timestamp("ns", "UTC"))
    except pa.ArrowInvalid:
        found = (_parse_time(text, invalid) for text in texts.cast(pa.binary()).to_pylist())
        return np.fromiter(found, dtype=np.int64, count=len(texts))
    times: SeqArray = parsed.cast(pa.int64()).to_numpy()
    return times


def _parse_time(text: bytes, invalid: int) -> int:
    try:
        time = parse_instant(text.decode())
    except ValueError:
        return invalid
    return time if abs(time) < 1 << 62 else invalid


def format_origins(domain: str, stream: str, seq: pa.Array, time: pa.Array) -> pa.BinaryArray:
    """Build the origin of each message of a stream; `time` is nanoseconds since 1970, UTC."""
    return concat_rows(*build_origin_parts(domain, stream, seq, time))


def build_origin_parts(
    domain: str, stream: str, seq: pa.Array, time: pa.Array
) -> list[pa.BinaryArray | bytes]:
    """Build the parts of `format_origins`, which callers insert into longer texts."""
    second = pc.divide(time, SECOND)
    encoded = pc.dictionary_encode(second)  # few distinct seconds, and formatting is slow
    texts = pc.strftime(
        encoded.dictionary.cast(pa.int64()).view(pa.timestamp("s")), format="%Y-%m-%dT%H:%M:%S."
    ).view(BYTES)
    rest = pc.add(pc.subtract(time, pc.multiply(second, SECOND)), SECOND)
    fraction = pc.binary_slice(format_numbers(rest), 1, 10)
    return [
        f"{domain}/{stream}/".encode(),
        format_numbers(seq),
        b"/",
        texts.take(encoded.indices),
        fraction,
        b"Z",
    ]


def resolve_origins(blocks: pa.BinaryArray, own: pa.BinaryArray) -> pa.BinaryArray:
    """Return the origin of each message: from its header, or its own if it has none."""
    if not contains_bytes(blocks, f"{ORIGIN_HEADER}:".encode()):
        return own
    found = pc.extract_regex(blocks, pattern=_ORIGIN_LINE)
    return pc.coalesce(pc.struct_field(found, "origin"), own)


def neutralize_control_headers(blocks: pa.BinaryArray) -> pa.BinaryArray:
    """Rename control headers in header blocks, so that the next server does not act on them."""
    if not contains_bytes(blocks, b"nats-", lower=True):
        return blocks
    return pc.replace_substring_regex(
        blocks, pattern=_CONTROL_LINE, replacement=f"\r\n{KEPT_PREFIX}\\1:"
    )


def neutralize_headers(blocks: pa.BinaryArray) -> pa.BinaryArray:
    """Rename control headers and the origin header in header blocks."""
    blocks = neutralize_control_headers(blocks)
    if not contains_bytes(blocks, f"\r\n{ORIGIN_HEADER}:".encode()):
        return blocks
    return pc.replace_substring(blocks, f"\r\n{ORIGIN_HEADER}:", f"\r\n{KEPT_ORIGIN_HEADER}:")


def add_origin_header(blocks: pa.BinaryArray, *own: pa.BinaryArray | bytes) -> pa.BinaryArray:
    """Neutralize header blocks and append the origin header; `own` are its value or its parts."""
    return append_header_lines(
        neutralize_headers(blocks), f"{ORIGIN_HEADER}: ".encode(), *own, b"\r\n"
    )


def parse_headers(blocks: pa.BinaryArray) -> pa.ListArray:
    """Parse header blocks into lists of names and values, in order and with duplicates.

    A message without headers has an empty list.
    """
    lines = pc.split_pattern(blocks.view(pa.string()), "\r\n")
    offsets = lines.offsets.to_numpy().astype(np.int64)
    offsets = offsets - offsets[0] if len(offsets) else offsets
    text = lines.flatten()
    keep = pc.not_equal(pc.binary_length(text), 0).to_numpy(zero_copy_only=False).copy()
    keep[offsets[:-1]] = False  # `NATS/1.0`, or an empty block
    counts = np.concatenate([[0], np.cumsum(keep)])[offsets]
    halves = pc.split_pattern(
        concat_rows(text.filter(pa.array(keep)).view(BYTES), b":").view(pa.string()),
        ":",
        max_splits=1,
    )
    name, value = pc.list_element(halves, 0), pc.list_element(halves, 1)
    # Without the colon that ensured a second half.
    value = pc.binary_slice(value.view(BYTES), 0, -1)
    spaced = pc.starts_with(value, b" ")
    value = pc.if_else(spaced, pc.binary_slice(value, 1, _TO_END), value).view(pa.string())
    fields = pa.StructArray.from_arrays([name, value], names=["name", "value"])
    return pa.ListArray.from_arrays(pa.array(counts, pa.int32()), fields)


def encode_headers(headers: pa.ListArray) -> pa.BinaryArray:
    """Encode lists of names and values as header blocks; an empty list or null is no block."""
    fields = headers.flatten()
    name, value = (pc.struct_field(fields, part).view(BYTES) for part in ("name", "value"))
    lines = concat_rows(name, b": ", pc.coalesce(value, pa.scalar(b"", BYTES)), b"\r\n")
    counts = pc.coalesce(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    text = pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), lines), pa.scalar(b"", BYTES))
    some = pa.array(counts > 0)
    return pc.if_else(some, concat_rows(b"NATS/1.0\r\n", text, b"\r\n"), pa.scalar(b"", BYTES))


def to_table(domain: str, stream: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert messages as read (`protocol.MESSAGES`) to the columns of `TABLE_SCHEMA`."""
    count, own = rows.num_rows, format_origins(domain, stream, rows["seq"], rows["time"])
    origins = resolve_origins(rows["headers"], own)
    columns: list[Any] = [
        pa.repeat(pa.scalar(domain), count),
        pa.repeat(pa.scalar(stream), count),
        rows["seq"],
        rows["time"],
        rows["subject"].view(pa.string()),
        parse_headers(rows["headers"]),
        rows["data"],
        origins.view(pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=TABLE_SCHEMA)


def to_bytes(column: pa.Array) -> pa.Array:
    """Convert a column to binary. Spark may return larger offsets, or text."""
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary()).cast(BYTES)
    return column.view(BYTES) if pa.types.is_string(column.type) else column
