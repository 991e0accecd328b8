"""The document that `backfill plan` prints: pending messages, strategy and estimate."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from jsplan.documents.backfill import FORMAT_VERSION

#: Values of `measured`: counted by a server, compared by headers with the target, or not known.
COUNTED, COMPARED, UNKNOWN = "counted", "compared", "unknown"


class OriginPreview(Struct):
    """The preview of one origin, with the sequences `first` to `last`.

    `messages` and about `bytes` of them are pending; None: see `error`. `measured` says how they
    were counted. `in_target` are in the target already. `gap_messages` are no longer at the origin.
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


class BackfillPreview(Struct):
    """The document. `status` is new, started or done; `command` runs the backfill.

    `strategy_problem` says why the strategy of the entry is not possible. `filtered_by` names the
    keys that may still drop messages during the copy (`where`, `transform`): then all numbers are
    upper bounds.
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
        """Pending messages of all origins that could be measured."""
        return sum(origin.messages or 0 for origin in self.origins)

    @property
    def bytes(self) -> int:
        """About how many bytes these have."""
        return sum(origin.bytes or 0 for origin in self.origins)

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
            "origins": [origin.to_json() for origin in self.origins],
        }
