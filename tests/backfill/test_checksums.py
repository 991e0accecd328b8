"""Sums over blocks of messages agree exactly when both sides are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from jsplan.backfill.rows import LATE, NO_ORIGIN, REPAIRED, ROW_SCHEMA, SKIPPED
from jsplan.backfill.spark.verify_join import BLOCK_SEQUENCES, compare_checksums, sum_blocks

Rows = list[dict[str, int]]


def compared_side(
    number: int, rows: Rows, cut: int = 0, others: int = 0
) -> Callable[[], Iterator[pa.RecordBatch]]:
    """Return a side that yields these rows in two batches, and the count of other messages."""

    def batches() -> Iterator[pa.RecordBatch]:
        none = {"origin_number": NO_ORIGIN, "place": others}
        for part in (rows[:cut], rows[cut:], [none] if number else []):
            full = [{**dict.fromkeys(ROW_SCHEMA.names, 0), "side": number, **row} for row in part]
            if full:
                yield pa.RecordBatch.from_pylist(full, schema=ROW_SCHEMA)

    return batches


def compare_sums(origin: Rows, target: Rows, others: int = 0) -> list[dict[str, object]] | None:
    """Compare the sums of both sides."""
    return compare_checksums(
        block
        for side in (
            compared_side(0, origin, len(origin) // 2),
            compared_side(1, target, 1, others),
        )
        for block in sum_blocks(side)
    )


def message(seq: int, origin_number: int = 0, **other: int) -> dict[str, int]:
    """Return one row."""
    return {
        "origin_number": origin_number,
        "seq": seq,
        "time": 1_000 + seq,
        "digest": seq * 7 - 50_000,
    } | other


EVERY = [
    message(seq, origin_number)
    for origin_number in (0, 3)
    for seq in (1, 2, 3, BLOCK_SEQUENCES - 1, BLOCK_SEQUENCES, 5 * BLOCK_SEQUENCES)
]


def test_equal_sides_agree() -> None:
    """Equal sides agree in any order and batches; messages of no origin are counted."""
    assert compare_sums(EVERY, EVERY[::-1], others=4) == [
        {"origin_number": 0, "kind": "equal", "count": 6},
        {"origin_number": 3, "kind": "equal", "count": 6},
        {"origin_number": NO_ORIGIN, "kind": "others", "count": 4},
    ]


def test_empty_sides_agree() -> None:
    """Two empty ranges are equal."""
    assert compare_sums([], []) == [{"origin_number": NO_ORIGIN, "kind": "others", "count": 0}]


def test_a_difference_needs_a_full_comparison() -> None:
    """A difference of one message, or a mark on one, needs the comparison by message."""
    one, other, *rest = EVERY
    targets: dict[str, Rows] = {
        "one less": EVERY[1:],
        "one more": [*EVERY, message(4)],
        "one twice": [*EVERY, one],
        "altered": [one | {"digest": 0}, other, *rest],
        "time": [one | {"time": 7}, other, *rest],
        "payloads swapped": [
            one | {"digest": other["digest"]},
            other | {"digest": one["digest"]},
            *rest,
        ],
        "times swapped": [one | {"time": other["time"]}, other | {"time": one["time"]}, *rest],
        "origin number": [one | {"origin_number": 3}, other, *rest],
        "late": [one | {"mark": LATE}, other, *rest],
        "repaired": [one | {"mark": REPAIRED}, other, *rest],
        "native": [one | {"time": 0}, other, *rest],
    }
    assert [what for what, rows in targets.items() if compare_sums(EVERY, rows) is not None] == []


def test_a_skipped_message_needs_a_full_comparison() -> None:
    """A message that was skipped on purpose is missing on the other side."""
    assert compare_sums([*EVERY, message(4, mark=SKIPPED)], EVERY) is None


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 3), st.integers(-3, 3)), max_size=8),
    st.randoms(),
)
def test_sums_agree_only_for_equal_sides(rows: list[tuple[int, int, int]], chance: object) -> None:
    """Two sides agree exactly if they have the same messages the same number of times."""
    origin = [{"seq": seq, "time": time, "digest": digest} for seq, time, digest in rows]
    target = [dict(row) for row in origin]
    chance.shuffle(target)  # type: ignore[attr-defined]
    if target and chance.random() < 0.5:  # type: ignore[attr-defined]
        target[0][chance.choice(["seq", "time", "digest"])] += 1  # type: ignore[attr-defined]

    same = sorted(map(str, origin)) == sorted(map(str, target))

    assert (compare_sums(origin, target) is not None) == same
