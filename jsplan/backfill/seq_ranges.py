"""Set arithmetic on ranges of sequences. Needs no library: plan and apply use it too. What state keeps is in `records`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from jsplan.backfill.model import (
    MAX_LISTED_RANGES,
    BackfillState,
    OriginState,
    SeqRange,
    hash_config,
)

#: So many messages that are too large are named.
MAX_NAMED_MESSAGES: Final = 1000
#: After every sequence.
MAX_SEQ: Final = 1 << 63


def intersect(spans: Iterable[SeqRange], others: Iterable[SeqRange]) -> list[SeqRange]:
    """What is in both; both are sorted and have no sequence twice."""
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
    """What is in the first and not in the others; both are sorted and have no sequence twice."""
    edges = [(other.first, other.last) for other in others]
    befores, afters = [0, *(last for _, last in edges)], [*(first for first, _ in edges), MAX_SEQ]
    between = (
        SeqRange(before + 1, after - 1) for before, after in zip(befores, afters, strict=True)
    )
    return intersect(spans, [span for span in between if span.size > 0])


def first_sequences(spans: Iterable[SeqRange], most: int) -> list[int]:
    """The first `most` sequences of the spans."""
    return list(
        islice(chain.from_iterable(range(span.first, span.last + 1) for span in spans), most)
    )


def count_sequences(spans: Iterable[SeqRange]) -> int:
    """How many sequences they have together."""
    return sum(span.size for span in spans)


__all__ = [
    "MAX_LISTED_RANGES",
    "MAX_NAMED_MESSAGES",
    "MAX_SEQ",
    "BackfillState",
    "OriginState",
    "SeqRange",
    "count_sequences",
    "first_sequences",
    "hash_config",
    "intersect",
    "subtract",
]
