"""The document that `backfill plan` prints: what is missing of an entry, how it would be copied, and about how long that takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jsplan.documents.backfill import FORMAT_VERSION

#: How what is missing was found: a server counted the range; the target was looked through and compared, headers only; nobody could say.
COUNTED, COMPARED, UNKNOWN = "counted", "compared", "unknown"


@dataclass(slots=True)
class OriginPreview:
    """One origin. `first` to `last` are its sequences, `messages` and about so many `bytes` of them are missing at the target (None: see
    `error`); `measured` says how that was found. `in_target` are in the target already, `gap_messages` no longer at the origin.
    """

    origin: str
    target: str
    first: int = 1
    last: int = 0
    pinned: bool = False
    done: bool = False
    messages: int | None = None
    bytes: int | None = None
    measured: str = UNKNOWN
    in_target: int = 0
    gap_messages: int = 0
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """The element of `origins`."""
        return {
            "from": self.origin,
            "to": self.target,
            "first": self.first,
            "last": self.last,
            "pinned": self.pinned,
            "done": self.done,
            "messages": self.messages,
            "bytes": self.bytes,
            "measured": self.measured,
            "in_target": self.in_target,
            "gap_messages": self.gap_messages,
            "error": self.error or None,
        }


@dataclass(slots=True)
class BackfillPreview:
    """The document. `status`: new, started or done; `strategy_problem` says why the strategy that the entry asks for is not possible;
    `command` runs it. `filtered_by` names what may still leave messages out when they are copied (`where`, `transform`): then
    all numbers are the most.
    """

    name: str
    status: str
    strategy: str
    reason: str
    command: str
    strategy_problem: str = ""
    estimate: dict[str, Any] | None = None
    filtered_by: tuple[str, ...] = ()
    origins: list[OriginPreview] = field(default_factory=list)

    @property
    def messages(self) -> int:
        """Messages that are missing, of all origins that could be asked."""
        return sum(leg.messages or 0 for leg in self.origins)

    @property
    def bytes(self) -> int:
        """About so many bytes these have."""
        return sum(leg.bytes or 0 for leg in self.origins)

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "backfill-plan",
            "name": self.name,
            "status": self.status,
            "strategy": self.strategy,
            "reason": self.reason,
            "strategy_problem": self.strategy_problem or None,
            "command": self.command,
            "messages": self.messages,
            "bytes": self.bytes,
            "filtered_by": [*self.filtered_by],
            "estimate": self.estimate,
            "origins": [leg.to_json() for leg in self.origins],
        }
