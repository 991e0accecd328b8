"""Set arithmetic on ranges of sequences, without the extra `spark`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from jsplan.planning.backfill.model import SeqRange

#: Messages that are too large and listed by sequence.
MAX_NAMED_MESSAGES: Final = 1000
#: Greater than every sequence.
MAX_SEQ: Final = 1 << 63


def intersect(spans: Iterable[SeqRange], others: Iterable[SeqRange]) -> list[SeqRange]:
    """Intersect two lists of sorted, disjoint ranges."""
    one, two, found = list(spans), list(others), []
    left = right = 0
    while left < len(one) and right < len(two):
        first, last = max(one[left].first, two[right].first), min(one[left].last, two[right].last)
        if first <= last:
            found.append(SeqRange(first, last))
        if one[left].last < two[right].last:
            left += 1
        else:
            right += 1
    return found


def subtract(spans: Iterable[SeqRange], others: Iterable[SeqRange]) -> list[SeqRange]:
    """Subtract the second list of sorted, disjoint ranges from the first."""
    edges = [(other.first, other.last) for other in others]
    befores, afters = [0, *(last for _, last in edges)], [*(first for first, _ in edges), MAX_SEQ]
    between = (
        SeqRange(before + 1, after - 1) for before, after in zip(befores, afters, strict=True)
    )
    return intersect(spans, [span for span in between if span.size > 0])


def first_sequences(spans: Iterable[SeqRange], most: int) -> list[int]:
    """Return the first `most` sequences of the spans."""
    return list(
        islice(chain.from_iterable(range(span.first, span.last + 1) for span in spans), most)
    )


def count_sequences(spans: Iterable[SeqRange]) -> int:
    """Count the sequences of all spans."""
    return sum(span.size for span in spans)
