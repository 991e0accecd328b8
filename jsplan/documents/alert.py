"""Alerts of the drift job, and the notifications that sinks receive about them."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Struct

from jsplan.documents.base import Document
from jsplan.documents.plan import FieldChange
from jsplan.documents.step_kinds import Severity
from jsplan.documents.types import Time, text

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
AlertId = Annotated[str, text("the id of an alert", "^[0-9a-f]{12}$")]


class Alert(Struct, frozen=True):
    """One finding of the drift job.

    `id` stays the same while the finding lasts, in one workspace and environment. `summary` is one
    line about `address`, `details` are further lines, and `fields` are those of `change.fields`.
    """

    id: AlertId
    kind: Kind
    severity: Severity
    address: str
    summary: str
    details: tuple[str, ...] = ()
    fields: tuple[FieldChange, ...] = ()

    @property
    def domain(self) -> str:
        """The domain that it is about; empty for the whole workspace."""
        return (
            self.address.partition("/")[0] if "/" in self.address or self.kind == "offline" else ""
        )


class Actor(Struct, frozen=True):
    """The client of the change. Behind a leafnode the server knows only the user of the link."""

    user: str
    client: str
    host: str
    account: str
    leafnode: bool = False

    def __str__(self) -> str:
        client = f" ({self.client})" if self.client else ""
        where = f" from {self.host}" if self.host else ""
        link = " over a leafnode" if self.leafnode else ""
        return f"{self.user or 'unknown user'}{client}{where}{link}"


class AlertEvent(Document, tag="notification"):
    """The document that sinks receive when an alert opens, changes or is resolved.

    `id` is that of the alert with a time and a growing number: a receiver recognizes duplicates by
    it. `since` is when the alert was found first. `by` is the client of the change, if a server
    reported it. With `alerts`, it opens all of them at once, and `alert` sums them up.
    """

    COMPUTED = ("text",)

    id: str
    event: EventType
    alert: Alert
    workspace: str
    environment: str | None
    timestamp: Time
    since: Time
    by: Actor | None = None
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
        by = f", reported as {self.by}" if self.by is not None else ""
        return f"{where}: {alert.severity}: {alert.address} {summary}{details}{by} [{alert.id}]"
