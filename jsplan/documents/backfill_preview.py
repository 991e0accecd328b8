"""The document that `backfill plan` prints: pending messages, strategy and estimate."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import field

from jsplan.documents.backfill import OriginRange
from jsplan.documents.base import Document
from jsplan.documents.parts import Estimate
from jsplan.documents.types import Count

#: Values of `measured`: counted by a server, compared by headers with the target, an upper bound
#: without the extra `spark`, or not known.
COUNTED: Final = "counted"
COMPARED: Final = "compared"
BOUNDED: Final = "bounded"
UNKNOWN: Final = "unknown"


class OriginPreview(OriginRange):
    """The preview of one origin, with the sequences `first` to `last`.

    `messages` and about `bytes` of them are pending; None: see `error`. `measured` says how they
    were counted; `bounded` is an upper bound. `in_target` are in the target already. `gap_messages`
    are no longer at the origin.
    """

    pinned: bool = False
    done: bool = False
    messages: Count | None = None
    bytes: Count | None = None
    measured: Literal["counted", "compared", "bounded", "unknown"] = UNKNOWN
    in_target: Count = 0
    gap_messages: Count = 0
    error: str | None = None


class BackfillPreview(Document, tag="backfill-plan"):
    """The document. `status` is new, started or done; `command` runs the backfill.

    `strategy_problem` says why the strategy of the entry is not possible. `filtered_by` names the
    keys that may still drop messages during the copy (`where`, `transform`): then all numbers are
    upper bounds.
    """

    COMPUTED = ("messages", "bytes")

    name: str
    status: Literal["new", "started", "done"]
    strategy: Literal["snapshot", "spark"]
    reason: str
    command: str
    strategy_problem: str | None = None
    estimate: Estimate | None = None
    filtered_by: list[str] = field(default_factory=list)
    origins: list[OriginPreview] = field(default_factory=list)

    @property
    def messages(self) -> Count:
        """Pending messages of all origins that could be measured."""
        return sum(origin.messages or 0 for origin in self.origins)

    @property
    def bytes(self) -> Count:
        """About how many bytes these have."""
        return sum(origin.bytes or 0 for origin in self.origins)
