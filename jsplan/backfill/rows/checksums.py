"""Prove that both sides of a verification are equal, with checksums of blocks of messages.

Checksums cost less than a join of every message. Equal sums mean equal messages, each once.
Different sums do not say what differs; every message is then joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.rows.message_rows import AT_TARGET, EXPECTED, NO_ORIGIN

#: Origin sequences per checksum.
BLOCK_SEQUENCES: Final = 1 << 16
#: Batches whose messages are added up together.
_BATCHES: Final = 64
#: Multipliers of splitmix64.
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
#: A key is the number of an origin, and in its low bits that of a block.
_BLOCK_BITS: Final = 47
_SUMS: Final = pa.schema([("key", pa.int64()), ("count", pa.int64()), ("total", pa.uint64())])
NumberArray = np.ndarray[Any, Any]


class BlockSums(Struct):
    """The number of messages of each block, and the sum of their mixed bits; other messages.

    `plain`: no message is out of order, repaired, skipped, or delivered by a source of the target.
    """

    side: int
    blocks: pa.Table
    plain: bool
    others: int


def sum_blocks(side: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[BlockSums]:
    """Sum up one side. Raises the errors of the side."""
    parts, plain, number, others = [_SUMS.empty_table()], True, EXPECTED, 0
    for rows in side():
        number = rows["side"][0].as_py()
        is_known = pc.not_equal(rows["origin_number"], NO_ORIGIN)
        known = rows.filter(is_known)
        others += pc.sum(rows["place"].filter(pc.invert(is_known)), min_count=0).as_py()
        seq, time, digest = (known[name].to_numpy() for name in ("seq", "time", "digest"))
        plain &= not rows["mark"].to_numpy().any() and bool((time > 0).all())
        mixed = _mix_bits(seq.astype(np.uint64)) ^ time.astype(np.uint64)
        mixed = _mix_bits(_mix_bits(mixed) ^ digest.view(np.uint64))
        origins = known["origin_number"].to_numpy().astype(np.int64)
        keys = (origins << _BLOCK_BITS) + seq // BLOCK_SEQUENCES
        columns = [pa.array(keys), pa.array(np.ones(len(seq), dtype=np.int64)), pa.array(mixed)]
        parts.append(pa.Table.from_arrays(columns, schema=_SUMS))
        if len(parts) > _BATCHES:
            parts = [_add_up(parts)]
    yield BlockSums(number, _add_up(parts), plain, others)


def _add_up(parts: Iterable[pa.Table]) -> pa.Table:
    """Add up the messages of each block; sums are modulo 2^64."""
    rows = pa.concat_tables(parts).group_by("key", use_threads=False)
    found = rows.aggregate([("count", "sum"), ("total", "sum")])
    return found.select(["key", "count_sum", "total_sum"]).rename_columns(_SUMS.names)


def _mix_bits(numbers: NumberArray) -> NumberArray:
    """Mix the bits of each number, so that no two changes cancel out in a sum.

    Every bit of the result depends on every bit of the number.
    """
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST_MULTIPLIER
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND_MULTIPLIER
    found: NumberArray = numbers ^ (numbers >> np.uint64(31))
    return found


def compare_checksums(sums: Iterable[BlockSums]) -> list[dict[str, Any]] | None:
    """Compare the results of `sum_blocks` of each side.

    Returns the result of a full comparison, `{origin_number, kind, count}`, or None where the sums
    do not prove that all messages are equal.
    """
    results = list(sums)
    expected, stored = (
        _add_up([_SUMS.empty_table(), *(one.blocks for one in results if one.side == side)])
        for side in (EXPECTED, AT_TARGET)
    )
    equal = expected.sort_by("key").equals(stored.sort_by("key"))
    if not equal or not all(result.plain for result in results):
        return None
    origins = pc.shift_right(expected["key"], _BLOCK_BITS)
    blocks = pa.table({"origin_number": origins, "count": expected["count"]})
    counts = blocks.group_by("origin_number", use_threads=False).aggregate([("count", "sum")])
    others = sum(result.others for result in results)
    return [
        *(
            {"origin_number": row["origin_number"], "kind": "equal", "count": row["count_sum"]}
            for row in counts.to_pylist()
        ),
        {"origin_number": NO_ORIGIN, "kind": "others", "count": others},
    ]
