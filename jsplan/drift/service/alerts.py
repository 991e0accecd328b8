"""Alerts with stable ids from a drift document, and the register of open alerts. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.documents.alert import Actor, Alert, AlertEvent, EventType
from jsplan.documents.base import digest, plain
from jsplan.documents.drift import Drift, Unmanaged, threshold_severity
from jsplan.documents.plan import ResourceChange
from jsplan.documents.step_kinds import SEVERITIES

#: Describes a changed resource in lines of text; views have better ones.
DescribeChange = Callable[[ResourceChange], tuple[str, ...]]
#: The address of alerts about the whole workspace.
WORKSPACE = "workspace"
#: Addresses that one notification about many unmanaged resources names in its text.
MAX_NAMED = 10


class Finding(Alert, frozen=True):
    """An alert with the digest of what was found. Another digest is a change."""

    content: str = ""

    @property
    def alert(self) -> Alert:
        """The part that notifications have."""
        return Alert(*(getattr(self, name) for name in Alert.__struct_fields__))


def format_fields(resource: ResourceChange) -> tuple[str, ...]:
    """Format each field as `path: before -> after`, in API values."""
    return tuple(
        f"{change.path}: {change.before!r} -> {change.after!r}" for change in resource.change.fields
    )


def make_alert_id(workspace: str, *parts: str) -> str:
    """Return 12 hexadecimal digits that are stable per workspace, environment and finding."""
    return hashlib.sha256("\n".join([workspace, *parts]).encode()).hexdigest()[:12]


def build_alerts(
    drift: Drift, kinds: Collection[str], describe: DescribeChange = format_fields
) -> list[Finding]:
    """Build the alerts of these kinds, and of each interrupted replacement.

    Ephemeral consumers have no alert: they come and go with their clients.
    """
    name = f"{drift.workspace}.{drift.environment or ''}"
    found = [_from_interruption(name, item) for item in drift.interrupted]
    found += [_from_resource(name, resource, describe) for resource in drift.resource_drift]
    found += [_from_flow(name, flow) for flow in drift.replication if flow["healthy"] is False]
    found += [_from_threshold(name, breach) for breach in drift.thresholds]
    found += [_from_unmanaged(name, item) for item in drift.unmanaged if not item.ephemeral]
    found += [
        offline_alert(name, str(domain["domain"]), str(domain["reason"]))
        for domain in drift.offline
        if not domain["excused"]
    ]
    return [alert for alert in found if alert.kind in kinds or alert.kind == "interrupted"]


def _from_interruption(name: str, item: Mapping[str, Any]) -> Finding:
    address, summary, detail = str(item["address"]), str(item["summary"]), (str(item["detail"]),)
    return Finding(
        make_alert_id(name, "interrupted", address),
        "interrupted",
        "destructive",
        address,
        summary,
        detail,
        content=summary,
    )


def _from_resource(name: str, resource: ResourceChange, describe: DescribeChange) -> Finding:
    missing = resource.change.after is None
    fields = tuple(resource.change.fields)
    return Finding(
        make_alert_id(name, "resource", resource.address),
        "missing" if missing else "changed",
        resource.severity or "functional",
        resource.address,
        "is gone" if missing else "was changed",
        () if missing else describe(resource),
        fields,
        digest([missing, plain(fields)]),
    )


def _from_flow(name: str, flow: Mapping[str, Any]) -> Finding:
    cause, severity = str(flow.get("cause") or "no cause known"), flow.get("severity", "functional")
    address = str(flow["to"])
    summary = f"does not follow {flow['from']} ({flow['kind']}): {cause}"
    key = make_alert_id(name, "replication", str(flow["from"]), address, str(flow["kind"]))
    return Finding(
        key, "replication", severity, address, summary, content=digest([cause, severity])
    )


def _from_threshold(name: str, breach: Mapping[str, Any]) -> Finding:
    """Return the alert; its content does not have the number, which changes with each check."""
    address, level = str(breach["address"]), str(breach["level"])
    key = make_alert_id(name, "threshold", address, str(breach["key"]))
    return Finding(
        key,
        "threshold",
        threshold_severity(breach),
        address,
        f"needs attention: {breach['cause']}",
        content=digest([level, breach["threshold"]]),
    )


def _from_unmanaged(name: str, item: Unmanaged) -> Finding:
    summary = "is in no file and not in state"
    key = make_alert_id(name, "unmanaged", item.address)
    return Finding(key, "unmanaged", item.severity, item.address, summary, content=item.severity)


def offline_alert(name: str, domain: str, reason: str) -> Finding:
    """Return the alert for an offline domain. Its reason may vary and is not in its content."""
    return Finding(
        make_alert_id(name, "offline", domain),
        "offline",
        "functional",
        domain,
        f"does not answer: {reason}",
    )


def check_failed_alert(name: str, reason: str) -> Finding:
    """Return the alert for a check that failed, so that silence does not count as health."""
    return Finding(
        make_alert_id(name, "check"),
        "check",
        "functional",
        WORKSPACE,
        f"cannot be checked: {reason}",
    )


def group_unmanaged(events: list[AlertEvent]) -> list[AlertEvent]:
    """Replace the events that open alerts of unmanaged resources by one event for all of them.

    Resources that the job saw being created keep their own: the server reported by whom.
    """
    grouped = [
        event
        for event in events
        if event.event == "opened" and event.alert.kind == "unmanaged" and event.by is None
    ]
    if len(grouped) < 2:
        return events
    first, last = grouped[0], grouped[-1]
    alerts = tuple(sorted((event.alert for event in grouped), key=lambda alert: alert.address))
    named = tuple(alert.address for alert in alerts[:MAX_NAMED])
    more = (f"and {len(alerts) - MAX_NAMED:,} more",) if len(alerts) > MAX_NAMED else ()
    summary = Alert(
        make_alert_id(
            f"{first.workspace}.{first.environment or ''}", "unmanaged", *(a.id for a in alerts)
        ),
        "unmanaged",
        min((alert.severity for alert in alerts), key=SEVERITIES.index),
        WORKSPACE,
        f"has {len(alerts):,} unmanaged resources",
        (*named, *more),
    )
    number = last.id.rpartition(".")[2]
    group = replace(
        first, id=f"{summary.id}.{first.timestamp}.{number}", alert=summary, alerts=alerts
    )
    replaced = {event.id for event in grouped[1:]}
    return [group if e is first else e for e in events if e.id not in replaced]


class OpenAlert(Struct):
    """An open alert, since when it is open, and who caused it, if known."""

    alert: Finding
    since: str
    actor: Actor | None = None


class AlertRegister(Struct):
    """The open alerts. It reports only changes: nothing twice, and nothing that was not checked."""

    workspace: str
    environment: str | None
    open: dict[str, OpenAlert] = field(default_factory=dict)
    count: int = 0

    def select_new(self, found: Iterable[Finding]) -> list[Finding]:
        """Return alerts that are not open yet, or that changed."""
        return [alert for alert in found if self._classify(alert) is not None]

    def _classify(self, alert: Finding) -> EventType | None:
        known = self.open.get(alert.id)
        if known is None:
            return "opened"
        same = (known.alert.kind, known.alert.content, known.alert.severity)
        return None if same == (alert.kind, alert.content, alert.severity) else "changed"

    def update(
        self,
        found: Iterable[Finding],
        covered: Callable[[Finding], bool],
        stamp: str,
        actors: Mapping[str, Actor] | None = None,
    ) -> list[AlertEvent]:
        """Record a check and return its notifications.

        `covered` is True for an open alert that the check would have found. `actors` is by address.
        """
        actors = actors or {}
        found = list(found)
        ids = {alert.id for alert in found}
        resolved = [o for o in self.open.values() if o.alert.id not in ids and covered(o.alert)]
        events = [
            self._build_event("resolved", o.alert, stamp, o.since, actors.get(o.alert.address))
            for o in resolved
        ]
        for item in resolved:
            del self.open[item.alert.id]
        for alert in found:
            if (occasion := self._classify(alert)) is None:
                continue
            known = self.open.get(alert.id)
            by = actors.get(alert.address)
            since = known.since if known else stamp
            self.open[alert.id] = OpenAlert(alert, since, by)
            events.append(self._build_event(occasion, alert, stamp, since, by))
        return events

    def _build_event(
        self, occasion: EventType, alert: Finding, stamp: str, since: str, by: Actor | None
    ) -> AlertEvent:
        self.count += 1
        return AlertEvent(
            f"{alert.id}.{stamp}.{self.count}",
            occasion,
            alert.alert,
            self.workspace,
            self.environment,
            stamp,
            since,
            by,
        )
