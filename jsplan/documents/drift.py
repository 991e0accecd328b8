"""The drift document: changes made outside jsplan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.base import plain
from jsplan.documents.parts import Deferred
from jsplan.documents.plan import ResourceChange
from jsplan.documents.plan_types import Severity

FORMAT_VERSION = "1.0"
#: The begin of the keys of `thresholds` that say that a server lost messages.
LOST_KEY = "jsplan.lost"


def threshold_severity(breach: Mapping[str, Any]) -> Severity:
    """Return the severity of an element of `thresholds`: lost messages are destructive."""
    if breach["level"] != "critical":
        return "cosmetic"
    return "destructive" if str(breach["key"]).startswith(LOST_KEY) else "functional"


class Unmanaged(Struct):
    """A stream, bucket or consumer that is in no file and not in state. `created` is RFC 3339.

    `ephemeral` is a consumer that the server removes when it is not used.
    """

    address: str
    type: str
    messages: int | None
    bytes: int | None
    created: str | None
    severity: Severity = "cosmetic"
    ephemeral: bool = False

    def to_json(self) -> dict[str, Any]:
        """The element of `unmanaged`."""
        return {
            "address": self.address,
            "type": self.type,
            "messages": self.messages,
            "bytes": self.bytes,
            "created": self.created,
            "severity": self.severity,
            "ephemeral": self.ephemeral,
        }


class Drift(Struct):
    """The document that `drift --json` prints.

    A missing resource is an element of `resource_drift` whose `after` is null. `offline` are the
    domains that could not be read; `excused` says that their `may_be_offline` allows it.
    `thresholds` are those in metadata that are exceeded, lost replicas of a cluster, lost and
    missed messages, and paused consumers: `{address, key, level, threshold, cause}`.
    `interrupted` are replacements and relocations that an apply did not finish:
    `{address, rejected, summary, detail}`. They are unhealthy, with each selection of kinds.
    `mutes` are findings that are known and not counted:
    `{address, kind, severity, owner, reason, until, fields}`. `declared_at` is the place of each
    resource with a finding in the files; it is not part of the JSON.
    """

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: str
    id: str
    resource_drift: list[ResourceChange] = field(default_factory=list)
    interrupted: list[dict[str, Any]] = field(default_factory=list)
    replication: list[dict[str, Any]] = field(default_factory=list)
    thresholds: list[dict[str, Any]] = field(default_factory=list)
    unmanaged: list[Unmanaged] = field(default_factory=list)
    mutes: list[dict[str, Any]] = field(default_factory=list)
    offline: list[dict[str, Any]] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    pending: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)
    exit_code: int = 0
    declared_at: dict[str, SourceRange] = field(default_factory=dict)

    @property
    def summary(self) -> dict[str, int]:
        """Counts: changed, missing, unhealthy, unmanaged, pending, muted, offline."""
        missing = sum(1 for r in self.resource_drift if r.change.after is None)
        return {
            "changed": len(self.resource_drift) - missing,
            "missing": missing,
            "unhealthy": sum(1 for r in self.replication if r["healthy"] is False)
            + len(self.interrupted)
            + sum(1 for breach in self.thresholds if breach["level"] == "critical"),
            "unmanaged": len(self.unmanaged),
            "pending": self.pending,
            "muted": len(self.mutes),
            "offline": len(self.offline),
        }

    def to_json(self) -> dict[str, Any]:
        """The document."""
        return {
            "format_version": FORMAT_VERSION,
            "kind": "drift",
            "jsplan_version": self.jsplan_version,
            "workspace": self.workspace,
            "environment": self.environment,
            "timestamp": self.timestamp,
            "id": self.id,
            "interrupted": self.interrupted,
            "resource_changes": [],
            "resource_drift": plain(self.resource_drift),
            "replication": self.replication,
            "thresholds": self.thresholds,
            "unmanaged": [u.to_json() for u in self.unmanaged],
            "mutes": self.mutes,
            "offline": self.offline,
            "deferred": plain(self.deferred),
            "diagnostics": [d.to_json() for d in self.diagnostics],
            "summary": self.summary,
            "exit_code": self.exit_code,
        }
