"""Alerts of the drift job, and the notifications that sinks receive about them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from jsplan.documents.plan_types import Severity

FORMAT_VERSION = "1.0"

EventType = Literal["opened", "changed", "resolved"]
Kind = Literal[
    "interrupted",
    "changed",
    "missing",
    "replication",
    "threshold",
    "unmanaged",
    "offline",
    "check",
]


@dataclass(frozen=True, slots=True)
class Alert:
    """One finding of the drift job.

    `id` stays the same while the finding lasts. `content` is a digest of the finding: another
    digest is a change. `summary` is one line about `address`, `details` are further lines, and
    `fields` are those of `change.fields`.
    """

    id: str
    kind: Kind
    severity: Severity
    address: str
    summary: str
    details: tuple[str, ...] = ()
    fields: tuple[dict[str, Any], ...] = field(default=(), compare=False)
    content: str = ""

    @property
    def domain(self) -> str:
        """The domain that it is about; empty for the whole workspace."""
        return (
            self.address.partition("/")[0] if "/" in self.address or self.kind == "offline" else ""
        )

    def to_json(self) -> dict[str, Any]:
        """The value of `alert` in a notification."""
        return {
            "id": self.id,
            "kind": self.kind,
            "severity": self.severity,
            "address": self.address,
            "summary": self.summary,
            "details": list(self.details),
            "fields": list(self.fields),
        }


class AlertEvent(Struct, frozen=True):
    """The document that sinks receive when an alert opens, changes or is resolved.

    `id` is that of the alert with a time and a growing number: a receiver recognizes duplicates by
    it. `since` is when the alert was found first. `by` is the user of the change, if a server
    reported it. With `alerts`, it opens all of them at once, and `alert` sums them up.
    """

    id: str
    event: EventType
    alert: Alert
    workspace: str
    environment: str | None
    timestamp: str
    since: str
    by: dict[str, Any] | None = None
    by_text: str = ""
    alerts: tuple[Alert, ...] = ()

    @property
    def text(self) -> str:
        """One line for people."""
        where = f"{self.workspace}, {self.environment}" if self.environment else self.workspace
        alert = self.alert
        summary = {
            "opened": alert.summary,
            "changed": f"{alert.summary} again" if alert.kind == "changed" else alert.summary,
            "resolved": "is as it should be again",
        }[self.event]
        shown = alert.details if self.event != "resolved" else ()
        details = f": {'; '.join(shown)}" if shown else ""
        by = f", reported as {self.by_text}" if self.by_text else ""
        return f"{where}: {alert.severity}: {alert.address} {summary}{details}{by} [{alert.id}]"

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "notification",
            "id": self.id,
            "event": self.event,
            "alert": self.alert.to_json(),
            "alerts": [alert.to_json() for alert in self.alerts],
            "workspace": self.workspace,
            "environment": self.environment,
            "timestamp": self.timestamp,
            "since": self.since,
            "by": self.by,
            "text": self.text,
        }
