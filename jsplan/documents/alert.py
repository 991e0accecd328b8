"""What the scheduled drift job tells: one situation that began, changed or is over. Finding it is left to `drift`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

FORMAT_VERSION = "1.0"

Occasion = Literal["opened", "changed", "resolved"]
Kind = Literal["interrupted", "changed", "missing", "replication", "unmanaged", "offline", "check"]
Severity = Literal["destructive", "functional", "cosmetic"]


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that is not as it should be. `id` is the same wherever and whenever this is found again; `content` is a digest of what
    exactly is found, `says` one line about `address`, `details` lines of their own. `fields` are those of `change.fields`.
    """

    id: str
    kind: Kind
    severity: Severity
    address: str
    says: str
    details: tuple[str, ...] = ()
    fields: tuple[dict[str, Any], ...] = field(default=(), compare=False)
    content: str = ""

    @property
    def domain(self) -> str:
        """The domain it is about; empty for the whole workspace."""
        return (
            self.address.partition("/")[0] if "/" in self.address or self.kind == "offline" else ""
        )

    def to_json(self) -> dict[str, Any]:
        """The value of `situation` in a notice."""
        return {
            "id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "address": self.address,
            "summary": self.says,
            "details": list(self.details),
            "fields": list(self.fields),
        }


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """The document that sinks receive. `id` is that of the situation and a number that grows, so that who receives it twice can tell.

    `since` is when the situation was found first, `by` who changed what it is about, as far as a server told.
    """

    id: str
    occasion: Occasion
    situation: Alert
    workspace: str
    environment: str | None
    timestamp: str
    since: str
    by: dict[str, Any] | None = None
    by_text: str = ""

    @property
    def text(self) -> str:
        """One line for people."""
        where = f"{self.workspace}, {self.environment}" if self.environment else self.workspace
        s = self.situation
        what = {
            "opened": s.says,
            "changed": f"{s.says} again" if s.kind == "changed" else s.says,
            "resolved": "is as it should be again",
        }[self.occasion]
        details = f": {'; '.join(s.details)}" if s.details and self.occasion != "resolved" else ""
        by = f", by {self.by_text}" if self.by_text else ""
        return f"{where}: {s.severity}: {s.address} {what}{details}{by} [{s.id}]"

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "notification",
            "id": self.id,
            "event": self.occasion,
            "alert": self.situation.to_json(),
            "workspace": self.workspace,
            "environment": self.environment,
            "timestamp": self.timestamp,
            "since": self.since,
            "by": self.by,
            "text": self.text,
        }
