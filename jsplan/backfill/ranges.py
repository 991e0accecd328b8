"""Ranges of sequences: what was frozen when a backfill was first run, what is missing of it. Pure; kept in state as JSON."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from jsplan.config.model import Backfill

Sequences = npt.NDArray[np.int64]
#: Of how many ranges a gap list has the bounds; of the rest only the numbers.
LISTED: Final = 1000


class Span(NamedTuple):
    """Sequences `first` to `last`, both included."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many sequences it has."""
        return self.last - self.first + 1


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


def common(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """What is in both."""
    pairs = ((one, other) for one in spans for other in others)
    return [
        Span(max(one.first, other.first), min(one.last, other.last))
        for one, other in pairs
        if one.first <= other.last and other.first <= one.last
    ]


def total(spans: Iterable[Span]) -> int:
    """How many sequences they have together."""
    return sum(span.size for span in spans)


@dataclass(slots=True)
class Leg:
    """One origin of an entry, as it was when the range was frozen.

    `origin` and `target` are addresses; `created` tells the origin from another one of its name; `first` to `last` are its
    sequences. `target_created` and `target_next` say which stream it goes to, and the sequence that came next there.
    `status` is `planned`, `running` or `done`; `copied` counts messages, `gaps` are ranges that were gone before they
    could be copied, `skipped` are sequences too large to be copied.
    """

    origin: str
    target: str
    created: str
    first: int
    last: int
    filters: list[str]
    target_created: str
    target_next: int
    status: str = "planned"
    copied: int = 0
    gaps: list[list[int]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    target_last: int = 0

    @property
    def span(self) -> Span:
        """The frozen range; it may be empty."""
        return Span(self.first, self.last)


@dataclass(slots=True)
class Record:
    """What state keeps of an entry: `text` is the hash of what the files said when its range was frozen; `done_at` is RFC 3339."""

    name: str
    text: str
    legs: list[Leg]
    frozen_at: str
    done_at: str = ""

    def to_json(self) -> dict[str, Any]:
        """The value of `backfills[name]`."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> Record:
        """The reverse of `to_json`."""
        return cls(raw["name"], raw["text"], [Leg(**leg) for leg in raw["legs"]], raw["frozen_at"], raw.get("done_at", ""))


def text_of(entry: Backfill) -> str:
    """A hash over what an entry says. What only changes how fast it goes is left out."""
    said = asdict(entry)
    for name in ("range", "rate", "window", "strategy"):
        said.pop(name)
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


__all__ = ["LISTED", "Leg", "Record", "Sequences", "Span", "common", "runs", "text_of", "total", "without"]
