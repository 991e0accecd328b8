"""Set arithmetic on ranges of sequences. Needs no library: plan and apply use it too. What state keeps is in `records`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

from jsplan.backfill.records import LISTED, Leg, Record, Span, text_of

#: So many messages that are too large are named.
NAMED: Final = 1000
#: After every sequence.
BEYOND: Final = 1 << 63


def common(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What is in both; both are sorted and have no sequence twice."""
    one, two, found = list(spans), list(others), []
    left = right = 0
    while left < len(one) and right < len(two):
        first, last = max(one[left].first, two[right].first), min(one[left].last, two[right].last)
        if first <= last:
            found.append(Span(first, last))
        if one[left].last < two[right].last:
            left += 1
        else:
            right += 1
    return found


def minus(spans: Iterable[Span], others: Iterable[Span]) -> list[Span]:
    """What is in the first and not in the others; both are sorted and have no sequence twice."""
    edges = [(other.first, other.last) for other in others]
    befores, afters = [0, *(last for _, last in edges)], [*(first for first, _ in edges), BEYOND]
    between = (Span(before + 1, after - 1) for before, after in zip(befores, afters, strict=True))
    return common(spans, [span for span in between if span.size > 0])


def sequences(spans: Iterable[Span], most: int) -> list[int]:
    """The first `most` sequences of the spans."""
    return list(islice(chain.from_iterable(range(span.first, span.last + 1) for span in spans), most))


def total(spans: Iterable[Span]) -> int:
    """How many sequences they have together."""
    return sum(span.size for span in spans)


__all__ = [
    "BEYOND",
    "LISTED",
    "NAMED",
    "Leg",
    "Record",
    "Span",
    "common",
    "minus",
    "sequences",
    "text_of",
    "total",
]
