"""The findings of a drift document as rows, most severe first, for all formats but text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from jsplan import units
from jsplan.documents.base import digest
from jsplan.documents.drift import threshold_severity
from jsplan.documents.step_kinds import SEVERITIES
from jsplan.render import resource_text, summary
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from jsplan.documents.drift import Drift, Unmanaged
    from jsplan.documents.plan import ResourceChange

#: The kinds as `--fail-on` calls them, and `offline` for unexpectedly offline domains.
KINDS = (
    "interrupted",
    "missing",
    "changed",
    "replication",
    "threshold",
    "offline",
    "unmanaged",
    "warning",
    "excused",
)
_SEVERITY_RANK: dict[str, int] = {severity: rank for rank, severity in enumerate(SEVERITIES)}
_TITLES = {
    "interrupted": "Interrupted replacements",
    "missing": "Gone",
    "changed": "Changed outside of jsplan",
    "replication": "Replication that does not work",
    "threshold": "Needs attention",
    "offline": "Not read",
    "unmanaged": "In no file and not in state",
    "warning": "Worth a look",
    "excused": "Offline, within its may_be_offline",
}


class Row(Struct, frozen=True):
    """One finding; all texts are safe to print.

    `summary` is one line about `address`, `details` are lines of their own.
    """

    kind: str
    severity: str
    address: str
    summary: str
    details: tuple[str, ...] = ()


def kind_title(kind: str) -> str:
    """Return the heading of a kind."""
    return _TITLES[kind]


def rows(drift: Drift) -> list[Row]:
    """Return all findings: missing resources first, then by severity."""
    found = [_interrupted_row(item) for item in drift.interrupted]
    found += [_resource_row(r) for r in drift.resource_drift]
    found += [_replication_row(flow) for flow in drift.replication if flow["healthy"] is False]
    found += [_threshold_row(breach) for breach in drift.thresholds]
    found += [_offline_row(domain) for domain in drift.offline]
    found += [_unmanaged_row(item) for item in drift.unmanaged]
    return sorted(
        found,
        key=lambda row: (KINDS.index(row.kind), _SEVERITY_RANK.get(row.severity, 3), row.address),
    )


def marker(drift: Drift, found: Iterable[Row]) -> str:
    """Return `<!-- jsplan:shop.prod:SHA -->`, which identifies a comment or an issue.

    The SHA changes only with the findings.
    """
    name = f"{drift.workspace}.{drift.environment}" if drift.environment else drift.workspace
    content = [(r.kind, r.severity, r.address, r.summary, r.details) for r in found]
    return f"<!-- jsplan:{name}:{digest(content).removeprefix('sha256:')} -->"


def summary_line(drift: Drift) -> str:
    """Return the greppable line."""
    return summary.drift_line(drift)


def is_failure(row: Row, fail_on: Collection[str]) -> bool:
    """Return True if a finding fails a check.

    An interrupted replacement always fails it, unless `fail_on` is empty.
    """
    return row.kind in fail_on or (row.kind == "interrupted" and bool(fail_on))


def _interrupted_row(item: dict[str, Any]) -> Row:
    return Row(
        "interrupted",
        "destructive",
        safe(str(item["address"])),
        safe(str(item["summary"])),
        (safe(str(item["detail"])),),
    )


def _resource_row(resource: ResourceChange) -> Row:
    severity = resource.severity or "functional"
    if resource.change.after is None:
        return Row("missing", severity, safe(resource.address), "is gone")
    return Row("changed", severity, safe(resource.address), "was changed", details(resource))


def details(resource: ResourceChange) -> tuple[str, ...]:
    """Return a line for each changed field, and for each added or removed element of a list."""
    lines = Lines()
    for change in resource.change.fields:
        resource_text.add_field_change(lines, resource.type, change)
    return tuple(
        line.removeprefix(" " * resource_text.BODY_INDENT) for line in lines.plain().splitlines()
    )


def _replication_row(flow: dict[str, Any]) -> Row:
    says = (
        f"does not follow {safe(str(flow['from']))} ({safe(str(flow['kind']))}): "
        f"{safe(str(flow.get('cause') or 'no cause known'))}"
    )
    origin, copy = flow.get("origin_last_seq"), flow.get("last_seq")
    at = (f"origin at {origin}, copy at {copy}",) if origin is not None and copy is not None else ()
    return Row(
        "replication", str(flow.get("severity") or "functional"), safe(str(flow["to"])), says, at
    )


def _threshold_row(breach: dict[str, Any]) -> Row:
    critical = breach["level"] == "critical"
    return Row(
        "threshold" if critical else "warning",
        threshold_severity(breach),
        safe(str(breach["address"])),
        f"needs attention: {safe(str(breach['cause']))}",
    )


def _offline_row(domain: dict[str, Any]) -> Row:
    kind = "excused" if domain.get("excused") else "offline"
    name = safe(str(domain.get("domain", "?")))
    return Row(kind, "functional", name, safe(offline_reason(domain)))


def offline_reason(domain: dict[str, Any]) -> str:
    """Return why a domain was not read, and for how long it may be offline if that is over."""
    reason, allowed = (
        str(domain.get("reason") or "it cannot be reached"),
        domain.get("may_be_offline"),
    )
    if allowed is None or domain.get("excused"):
        return reason
    return (
        f"{reason} (longer than its may_be_offline of {units.format_duration(allowed)}; last "
        f"seen {domain.get('last_seen')})"
    )


def describe_unmanaged(item: Unmanaged) -> list[str]:
    """Return the content of what nothing declares, and when it was created, as far as known."""
    amount = [count_text(item.messages, "message")] if item.messages is not None else []
    amount += [units.format_bytes(item.bytes)] if item.bytes is not None else []
    amount += [f"created {safe(item.created)}"] if item.created else []
    return amount + (["ephemeral"] if item.ephemeral else [])


def _unmanaged_row(item: Unmanaged) -> Row:
    amount, address = ", ".join(describe_unmanaged(item)), safe(item.address)
    details = (amount,) if amount else ()
    return Row("unmanaged", item.severity, address, "is in no file and not in state", details)
