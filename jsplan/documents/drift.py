"""The drift document: changes made outside jsplan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from msgspec import Meta, Struct, field

from jsplan.address import KINDS
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.documents.base import Document
from jsplan.documents.plan import ResourceChange
from jsplan.documents.step_kinds import Severity
from jsplan.documents.types import (
    AnyAddress,
    BreachShape,
    Count,
    Deferred,
    Interrupted,
    Replication,
    Time,
    kept,
)

NoChanges = Annotated[list[ResourceChange], Meta(max_length=0)]
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

    address: AnyAddress
    type: UnmanagedKind
    messages: Count | None
    bytes: Count | None
    created: str | None
    severity: Severity = "cosmetic"
    ephemeral: bool = False


class ThresholdShape(BreachShape):
    """An exceeded threshold of an object."""

    address: AnyAddress


class DriftSummary(TypedDict):
    """Counts of the findings; a missing resource is not counted as changed."""

    changed: Count
    missing: Count
    unhealthy: Count
    unmanaged: Count
    pending: Count
    muted: Count
    offline: Count


if TYPE_CHECKING:
    UnmanagedKind = str
    Threshold = dict[str, Any]
else:
    UnmanagedKind = Literal[KINDS]
    Threshold = kept(ThresholdShape)


class Drift(Document, tag="drift"):
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

    COMPUTED = ("summary", "resource_changes")
    LOCAL = ("declared_at", "pending")

    jsplan_version: str
    workspace: str
    environment: str | None
    timestamp: Time
    id: str
    resource_drift: list[ResourceChange] = field(default_factory=list)
    interrupted: list[Interrupted] = field(default_factory=list)
    replication: list[Replication] = field(default_factory=list)
    thresholds: list[Threshold] = field(default_factory=list)
    unmanaged: list[Unmanaged] = field(default_factory=list)
    mutes: list[dict[str, Any]] = field(default_factory=list)
    offline: list[dict[str, Any]] = field(default_factory=list)
    deferred: list[Deferred] = field(default_factory=list)
    pending: int = 0
    diagnostics: list[Diagnostic] = field(default_factory=list)
    exit_code: Count = 0
    declared_at: dict[str, SourceRange] = field(default_factory=dict)

    @property
    def summary(self) -> DriftSummary:
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

    @property
    def resource_changes(self) -> NoChanges:
        """None: drift is no change of the workspace."""
        return []
