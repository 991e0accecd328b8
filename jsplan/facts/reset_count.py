"""Count what a consumer receives again, or never receives, when its position is set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec import Struct

from jsplan.subjects import passes_filters

#: The first cause of such a measurement. The second is its kind.
RESET_CAUSE: Final = "reset"
ResetKind = Literal["again", "skipped"]


class ResetCount(Struct, frozen=True):
    """A consumer that is set to the sequence `target`.

    `position` is the first message that it has not finished (None: unknown), `delivered` the last
    one that it passed, `ack_pending` its messages that are not acknowledged, all of them between
    the two. `filters` are those that it has then (none: everything). `kind`: `again` are the
    messages from `target` to `delivered`, `skipped` those before `target` that it has not finished.
    """

    kind: ResetKind
    target: int
    position: int | None
    delivered: int
    ack_pending: int
    filters: tuple[str, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The ranges (first, last sequence) to count: `again`; or passed, undelivered and kept.

        Those of `skipped` are what it has passed and will skip, what it has not, and what it has
        passed and will not skip.
        """
        if self.kind == "again":
            return [(self.target, self.delivered)]
        passed = min(self.target - 1, self.delivered)
        return [
            (self.position or 1, passed),
            (max(self.position or 1, self.delivered + 1), self.target - 1),
            (self.target, self.delivered),
        ]

    def bounds(self, least: Sequence[int], most: Sequence[int]) -> tuple[int, int]:
        """Return the bounds of the answer from those of the counts of `ranges`.

        A message that was delivered and not acknowledged may be before or after `target`.
        """
        if self.kind == "again":
            return least[0], most[0]
        low = max(0, self.ack_pending - most[2])
        return min(low, least[0]) + least[1], min(self.ack_pending, most[0]) + most[1]


@dataclass(slots=True)
class RangeTally:
    """The messages of each range that pass the filters."""

    count: ResetCount
    found: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.found = [0] * len(self.count.ranges)

    def visit(self, seq: int, subject: str) -> None:
        """Count one message."""
        if passes_filters(subject, self.count.filters):
            for number, (first, last) in enumerate(self.count.ranges):
                self.found[number] += first <= seq <= last
