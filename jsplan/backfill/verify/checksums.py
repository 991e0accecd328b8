"""A short proof that both sides of a verification are equal: sums over blocks of messages, where joining every message would cost more.

Equal sums are equal messages, each once. Where they differ it is not told how: then every message is joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa

from jsplan.backfill.verify.message_rows import NO_ORIGIN

#: Sequences at the origin that are summed up together.
BLOCK_SEQUENCES: Final = 1 << 16
#: Multipliers of splitmix64.
_FIRST_MULTIPLIER, _SECOND_MULTIPLIER = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_GOLDEN: Final = np.uint64(0x9E3779B97F4A7C15)
_NUMBER_COLUMNS: Final = ("leg", "side", "seq", "time", "digest", "place", "mark")
NumberArray = np.ndarray[Any, Any]
#: Side, leg, and which block of sequences.
BlockKey = tuple[int, int, int]


def sum_blocks(side: Callable[[], Iterator[pa.RecordBatch]]) -> Iterator[dict[str, Any]]:
    """What a side says, summed up. `plain` where it has nothing that is told apart: nothing out of order, repaired, left out or brought by
    a source of the target. Raises what the side raises.
    """
    blocks: dict[BlockKey, list[int]] = {}
    plain, others = True, 0
    for rows in side():
        leg, where, seq, time, digest, place, mark = (
            rows[name].to_numpy() for name in _NUMBER_COLUMNS
        )
        plain &= not mark.any() and bool((time[leg != NO_ORIGIN] > 0).all())
        others += int(place[leg == NO_ORIGIN].sum())
        for one in np.unique(leg[leg != NO_ORIGIN]).tolist():
            mine = leg == one
            _add_rows(blocks, (int(where[0]), one), seq[mine], time[mine], digest[mine])
    yield {
        "plain": plain,
        "others": others,
        "blocks": [[*key, *said] for key, said in sorted(blocks.items())],
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
    found, inverse, counts = np.unique(
        seqs // BLOCK_SEQUENCES, return_inverse=True, return_counts=True
    )
    sums = np.zeros(len(found), dtype=np.uint64)
    np.add.at(sums, inverse, mixed)
    for block, count, total in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
        said = blocks.setdefault((*key, block), [0, 0])
        said[0] += count
        said[1] = (said[1] + total) % (1 << 64)


def _mix_bits(numbers: NumberArray) -> NumberArray:
    """Every bit of the result depends on every bit of the number, so that no two changes cancel out in a sum."""
    numbers = numbers + _GOLDEN
    numbers = (numbers ^ (numbers >> np.uint64(30))) * _FIRST_MULTIPLIER
    numbers = (numbers ^ (numbers >> np.uint64(27))) * _SECOND_MULTIPLIER
    found: NumberArray = numbers ^ (numbers >> np.uint64(31))
    return found


def compare_checksums(sums: Iterable[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """What a comparison of every message would say, `{leg, kind, count}`, of what `sum_blocks` said of each side; None where the sums do not
    prove that all are equal.
    """
    every = list(sums)
    sides: tuple[dict[tuple[int, int], list[int]], ...] = ({}, {})
    for where, leg, block, count, total in (said for one in every for said in one["blocks"]):
        known = sides[where].setdefault((leg, block), [0, 0])
        known[:] = known[0] + count, (known[1] + total) % (1 << 64)
    if not all(one["plain"] for one in every) or sides[0] != sides[1]:
        return None
    counts: dict[int, int] = {}
    for (leg, _), (count, _) in sides[0].items():
        counts[leg] = counts.get(leg, 0) + count
    others = {"leg": NO_ORIGIN, "kind": "others", "count": sum(one["others"] for one in every)}
    return [
        *({"leg": leg, "kind": "equal", "count": count} for leg, count in counts.items()),
        others,
    ]
