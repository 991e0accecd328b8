"""Sorted arrays of sequences, and their ranges. Needs the extra `spark`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from jsplan.planning.backfill.model import SeqRange

SeqArray = npt.NDArray[np.int64]


def subtract_present(spans: Iterable[SeqRange], present: SeqArray) -> list[SeqRange]:
    """Return the parts of the spans that are not in `present`, which is sorted."""
    found: list[SeqRange] = []
    for span in spans:
        inside = present[
            np.searchsorted(present, span.first) : np.searchsorted(present, span.last, side="right")
        ]
        edges = np.concatenate([[span.first - 1], inside, [span.last + 1]])
        found += [
            SeqRange(int(edges[place]) + 1, int(edges[place + 1]) - 1)
            for place in np.flatnonzero(np.diff(edges) > 1)
        ]
    return found


def group_into_ranges(present: SeqArray) -> list[SeqRange]:
    """Group sorted sequences into ranges."""
    if not len(present):
        return []
    cuts = np.flatnonzero(np.diff(present) > 1)
    firsts, lasts = np.concatenate([[0], cuts + 1]), np.concatenate([cuts, [len(present) - 1]])
    return [
        SeqRange(int(present[first]), int(present[last]))
        for first, last in zip(firsts, lasts, strict=True)
    ]
