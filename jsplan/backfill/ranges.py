"""Ranges of sequences: what of them is missing. Pure; what state keeps is in `records`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice
from typing import Final

import numpy as np
import numpy.typing as npt

from jsplan.backfill.records import LISTED, Leg, Record, Span, text_of

Sequences = npt.NDArray[np.int64]
#: So many messages that are too large are named.
NAMED: Final = 1000
#: After every sequence.
BEYOND: Final = 1 << 63


def without(spans: Iterable[Span], present: Sequences) -> list[Span]:
    """What of the spans is not among `present`, which is sorted."""
    found: list[Span] = []
    for span in spans:
        inside = present[np.searchsorted(present, span.first) : np.searchsorted(present, span.last, side="right")]
        edges = np.concatenate([[span.first - 1], inside, [span.last + 1]])
        found += [Span(int(edges[place]) + 1, int(edges[place + 1]) - 1) for place in np.flatnonzero(np.diff(edges) > 1)]
    return found


def runs(present: Sequences) -> list[Span]:
    """Sorted sequences as the spans that they make."""
    if not len(present):
        return []
    cuts = np.flatnonzero(np.diff(present) > 1)
    firsts, lasts = np.concatenate([[0], cuts + 1]), np.concatenate([cuts, [len(present) - 1]])
    return [Span(int(present[first]), int(present[last])) for first, last in zip(firsts, lasts, strict=True)]


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
    "Sequences",
    "Span",
    "common",
    "minus",
    "runs",
    "sequences",
    "text_of",
    "total",
    "without",
]
