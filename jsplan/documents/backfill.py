"""The backfill document and the events of a running copy, both as data; printing is left to `render`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

FORMAT_VERSION = "1.0"


@dataclass(frozen=True, slots=True)
class MessagesMoved:
    """How far a copy is: `done` of about `total` messages (0: nobody knows) after `seconds`; `id` tells copies apart."""

    id: str
    title: str
    done: int
    total: int
    seconds: float


@dataclass(slots=True)
class LegResult:
    """What became of one origin. `copied` messages were copied by this run, `skipped` left out as too large; `gaps` are ranges of
    sequences that were gone before they could be copied, `gap_messages` how many that are. `path` names how they came.
    """

    origin: str
    target: str
    first: int
    last: int
    copied: int = 0
    bytes: int = 0
    seconds: float = 0.0
    attempts: int = 0
    verified: bool = False
    path: str = ""
    gaps: list[list[int]] = field(default_factory=list)
    gap_messages: int = 0
    skipped: list[int] = field(default_factory=list)
    skipped_count: int = 0

    def to_json(self) -> dict[str, Any]:
        """The element of `legs`."""
        return {
            "from": self.origin, "to": self.target, "first": self.first, "last": self.last, "copied": self.copied, "bytes": self.bytes,
            "seconds": round(self.seconds, 3), "attempts": self.attempts, "verified": self.verified, "path": self.path, "gaps": self.gaps,
            "gap_messages": self.gap_messages, "skipped": self.skipped, "skipped_count": self.skipped_count,
        }  # fmt: skip


@dataclass(slots=True)
class BackfillResult:
    """The document that `backfill run --json` prints."""

    name: str
    legs: list[LegResult] = field(default_factory=list)
    exit_code: int = 0

    @property
    def copied(self) -> int:
        """Messages that this run copied."""
        return sum(leg.copied for leg in self.legs)

    @property
    def gap_messages(self) -> int:
        """Messages that were gone before they could be copied."""
        return sum(leg.gap_messages for leg in self.legs)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION, "kind": "backfill", "name": self.name, "legs": [leg.to_json() for leg in self.legs],
            "exit_code": self.exit_code,
        }  # fmt: skip
