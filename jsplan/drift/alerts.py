"""A drift document as situations with stable ids, and the register of those that are open. Pure: who is told is left to `sinks`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from jsplan.documents.alert import Alert, AlertEvent, Occasion
from jsplan.documents.base import digest
from jsplan.documents.drift import Drift, Unmanaged
from jsplan.documents.plan import ResourceChange
from jsplan.drift.advisories import Actor

#: Lines about a changed resource, in words; views have better ones.
DescribeChange = Callable[[ResourceChange], tuple[str, ...]]
#: The address of what concerns the workspace as a whole.
WORKSPACE = "workspace"


def format_fields(resource: ResourceChange) -> tuple[str, ...]:
    """Each field as `path: before -> after`, in API values."""
    return tuple(
        f"{change.path}: {change.before!r} -> {change.after!r}" for change in resource.change.fields
    )


def make_alert_id(workspace: str, *parts: str) -> str:
    """Twelve hexadecimal digits: the same for the same thing in the same workspace and environment."""
    return hashlib.sha256("\n".join([workspace, *parts]).encode()).hexdigest()[:12]


def build_alerts(
    drift: Drift, kinds: Collection[str], describe: DescribeChange = format_fields
) -> list[Alert]:
    """Every finding of these kinds, and each interrupted replacement.

    Consumers that their server removes by itself are none: they come and go with their readers.
    """
    name = f"{drift.workspace}.{drift.environment or ''}"
    found = [_from_interruption(name, item) for item in drift.interrupted]
    found += [_from_resource(name, resource, describe) for resource in drift.resource_drift]
    found += [_from_flow(name, flow) for flow in drift.replication if flow["healthy"] is False]
    found += [_from_unmanaged(name, item) for item in drift.unmanaged if not item.ephemeral]
    found += [
        offline_alert(name, str(domain["domain"]), str(domain["reason"]))
        for domain in drift.offline
        if not domain["excused"]
    ]
    return [
        situation
        for situation in found
        if situation.kind in kinds or situation.kind == "interrupted"
    ]


def _from_interruption(name: str, item: Mapping[str, Any]) -> Alert:
    address, says, detail = str(item["address"]), str(item["summary"]), (str(item["detail"]),)
    return Alert(
        make_alert_id(name, "interrupted", address),
        "interrupted",
        "destructive",
        address,
        says,
        detail,
        content=says,
    )


def _from_resource(name: str, resource: ResourceChange, describe: DescribeChange) -> Alert:
    gone = resource.change.after is None
    fields = tuple(change.to_json() for change in resource.change.fields)
    return Alert(
        make_alert_id(name, "resource", resource.address),
        "missing" if gone else "changed",
        resource.severity or "functional",
        resource.address,
        "is gone" if gone else "was changed",
        () if gone else describe(resource),
        fields,
        digest([gone, fields]),
    )


def _from_flow(name: str, flow: Mapping[str, Any]) -> Alert:
    cause, severity = str(flow.get("cause") or "no cause known"), flow.get("severity", "functional")
    address = str(flow["to"])
    says = f"does not follow {flow['from']} ({flow['kind']}): {cause}"
    named = make_alert_id(name, "replication", str(flow["from"]), address, str(flow["kind"]))
    return Alert(named, "replication", severity, address, says, content=digest([cause, severity]))


def _from_unmanaged(name: str, item: Unmanaged) -> Alert:
    says = "is in no file and not in state"
    named = make_alert_id(name, "unmanaged", item.address)
    return Alert(named, "unmanaged", item.severity, item.address, says, content=item.severity)


def offline_alert(name: str, domain: str, reason: str) -> Alert:
    """A domain that does not answer and should. Why it does not may vary from look to look, and is no news."""
    return Alert(
        make_alert_id(name, "offline", domain),
        "offline",
        "functional",
        domain,
        f"does not answer: {reason}",
    )


def check_failed_alert(name: str, reason: str) -> Alert:
    """That there is no look at all, so that nobody takes silence for health."""
    return Alert(
        make_alert_id(name, "check"),
        "check",
        "functional",
        WORKSPACE,
        f"cannot be checked: {reason}",
    )


@dataclass(slots=True)
class OpenAlert:
    """A situation that is open: since when, and who brought it about as far as anybody told."""

    alert: Alert
    since: str
    actor: Actor | None = None


@dataclass(slots=True)
class AlertRegister:
    """The situations that are open. Tells what is news: nothing twice, and nothing that was not looked at."""

    workspace: str
    environment: str | None
    open: dict[str, OpenAlert] = field(default_factory=dict)
    count: int = 0

    def select_new(self, found: Iterable[Alert]) -> list[Alert]:
        """Those that are not open yet, or with other contents or another kind."""
        return [situation for situation in found if self._classify(situation) is not None]

    def _classify(self, situation: Alert) -> Occasion | None:
        known = self.open.get(situation.id)
        if known is None:
            return "opened"
        same = (known.alert.kind, known.alert.content, known.alert.severity)
        return (
            None if same == (situation.kind, situation.content, situation.severity) else "changed"
        )

    def update(
        self,
        found: Iterable[Alert],
        covered: Callable[[Alert], bool],
        stamp: str,
        who: Mapping[str, Actor] | None = None,
    ) -> list[AlertEvent]:
        """Take in a look: what was found, and which open situations it would have found too (`covered`). `who` is by address."""
        who = who or {}
        found = list(found)
        ids = {situation.id for situation in found}
        over = [o for o in self.open.values() if o.alert.id not in ids and covered(o.alert)]
        notices = [
            self._build_event("resolved", o.alert, stamp, o.since, who.get(o.alert.address))
            for o in over
        ]
        for item in over:
            del self.open[item.alert.id]
        for situation in found:
            if (occasion := self._classify(situation)) is None:
                continue
            known = self.open.get(situation.id)
            by = who.get(situation.address)
            since = known.since if known else stamp
            self.open[situation.id] = OpenAlert(situation, since, by)
            notices.append(self._build_event(occasion, situation, stamp, since, by))
        return notices

    def _build_event(
        self, occasion: Occasion, situation: Alert, stamp: str, since: str, by: Actor | None
    ) -> AlertEvent:
        self.count += 1
        return AlertEvent(
            f"{situation.id}.{stamp}.{self.count}",
            occasion,
            situation,
            self.workspace,
            self.environment,
            stamp,
            since,
            by.to_json() if by else None,
            str(by) if by else "",
        )
