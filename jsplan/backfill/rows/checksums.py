"""Prove that both sides of a verification are equal, with checksums of blocks of messages.

Checksums cost less than a join of every message. Equal sums mean equal messages, each once.
Different sums do not say what differs; every message is then joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.rows.message_rows import NO_ORIGIN

#: Origin sequences per checksum.
BLOCK_SEQUENCES: Final = 1 << 16
#: Multipliers of splitmix64.
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_NUMBER_COLUMNS: Final = ("origin_number", "side", "seq", "time", "digest", "place", "mark")
NumberArray = np.ndarray[Any, Any]
#: Side, number of the origin, and number of the block of sequences.
BlockKey = tuple[int, int, int]


def sum_blocks(side: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[dict[str, Any]]:
    """Sum up one side.

    `plain`: no message is out of order, repaired, skipped, or delivered by a source of the target.
    Raises the errors of the side.
    """
    blocks: dict[BlockKey, list[int]] = {}
    plain, others = True, 0
    for rows in side():
        origins, side_numbers, seq, time, digest, place, mark = (
            rows[name].to_numpy() for name in _NUMBER_COLUMNS
        )
        plain &= not mark.any() and bool((time[origins != NO_ORIGIN] > 0).all())
        others += int(place[origins == NO_ORIGIN].sum())
        for number in np.unique(origins[origins != NO_ORIGIN]).tolist():
            selected = origins == number
            _add_rows(
                blocks,
                (int(side_numbers[0]), number),
                seq[selected],
                time[selected],
                digest[selected],
            )
    yield {
        "plain": plain,
        "others": others,
        "blocks": [[*key, *total] for key, total in sorted(blocks.items())],
    }


def _add_rows(
    blocks: dict[BlockKey, list[int]],
    key: tuple[int, int],
    seqs: NumberArray,
    times: NumberArray,
    digests: NumberArray,
) -> None:
    mixed = _mix_bits(
        _mix_bits(_mix_bits(seqs.astype(np.uint64)) ^ times.astype(np.uint64))
        ^ digests.view(np.uint64)
    )
    block_numbers, inverse, counts = np.unique(
        seqs // BLOCK_SEQUENCES, return_inverse=True, return_counts=True
    )
    sums = np.zeros(len(block_numbers), dtype=np.uint64)
    np.add.at(sums, inverse, mixed)
    for block, count, total in zip(
        block_numbers.tolist(), counts.tolist(), sums.tolist(), strict=True
    ):
        sums_of_block = blocks.setdefault((*key, block), [0, 0])
        sums_of_block[0] += count
        sums_of_block[1] = (sums_of_block[1] + total) % (1 << 64)


def _mix_bits(numbers: NumberArray) -> NumberArray:
    """Mix the bits of each number, so that no two changes cancel out in a sum.

    Every bit of the result depends on every bit of the number.
    """
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST_MULTIPLIER
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND_MULTIPLIER
    found: NumberArray = numbers ^ (numbers >> np.uint64(31))
    return found


def compare_checksums(sums: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """Compare the results of `sum_blocks` of each side.

    Returns the result of a full comparison, `{origin_number, kind, count}`, or None where the sums
    do not prove that all messages are equal.
    """
    results = list(sums)
    sides: tuple[dict[tuple[int, int], list[int]], ...] = ({}, {})
    for side, number, block, count, total in (
        block_sums for result in results for block_sums in result["blocks"]
    ):
        known = sides[side].setdefault((number, block), [0, 0])
        known[:] = known[0] + count, (known[1] + total) % (1 << 64)
    if not all(result["plain"] for result in results) or sides[0] != sides[1]:
        return None
    counts: dict[int, int] = {}
    for (number, _), (count, _) in sides[0].items():
        counts[number] = counts.get(number, 0) + count
    others = {
        "origin_number": NO_ORIGIN,
        "kind": "others",
        "count": sum(result["others"] for result in results),
    }
    return [
        *(
            {"origin_number": number, "kind": "equal", "count": count}
            for number, count in counts.items()
        ),
        others,
    ]
