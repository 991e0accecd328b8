"""Builds the drift document from what one check has read.

Findings that are muted are moved out of it, until the date of the mute.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import datetime
from typing import Any, Final

from jsplan import __version__
from jsplan.address import Address, is_selected, matches, matches_any
from jsplan.config.model import Mute, Workspace
from jsplan.diagnostics import Diagnostic
from jsplan.documents.drift import Drift, Unmanaged, threshold_severity
from jsplan.documents.plan import ResourceChange
from jsplan.documents.status import Status
from jsplan.documents.step_kinds import Severity
from jsplan.documents.types import Deferred
from jsplan.errors import ExitCode, combine_exit_codes
from jsplan.facts.live import Live, LiveObject, get_retention, lacks_server
from jsplan.facts.replicas import note_unread_replicas
from jsplan.health import missing_servers_breach
from jsplan.options import DriftOptions
from jsplan.planning.contents.changes import detect_content_drift
from jsplan.planning.contents.decide import deferral, is_past, is_unknown
from jsplan.planning.crash_recovery import describe_interruption
from jsplan.planning.domain_findings import check_never_answered, is_within_offline_limit, last_seen
from jsplan.planning.drift import detect_drift
from jsplan.planning.interruptions import list_interruptions
from jsplan.planning.losses import find_health
from jsplan.planning.model import PlanInputs
from jsplan.replication import FlowHealth
from jsplan.units import SECOND, format_timestamp

#: The reason why a resource is deferred although its domain answers.
INTERRUPTED_REPLACEMENT = "it is in the middle of a replacement"


def is_ignored(workspace: Workspace, address: Address) -> bool:
    """Return True if `drift: ignore` names it."""
    return matches_any(workspace.drift.ignore, address)


def build_document(
    inputs: PlanInputs,
    managed: list[Address],
    unmanaged: list[LiveObject],
    options: DriftOptions,
    flows: Iterable[FlowHealth] = (),
) -> Drift:
    """Build the document of one check. What `drift: ignore` names is left out.

    The contents of buckets and streams that were read are those that `inputs` select.
    """
    live, workspace = inputs.live, inputs.workspace
    out = Drift(
        __version__, workspace.name, workspace.environment, format_timestamp(), str(uuid.uuid4())
    )
    interrupted = [
        item
        for item in list_interruptions(inputs, unmanaged)
        if is_selected(item["address"], options.targets, options.excludes)
    ]
    _add_health(out, workspace, interrupted, flows)
    named = {Address.parse(item["address"]) for item in out.interrupted}
    contents = (a for a in inputs.selected & inputs.live.requested if a.is_content)
    for address in sorted([*managed, *(a for a in contents if a in inputs.entries)]):
        _compare_managed(out, inputs, address, named)
    out.thresholds = list(_find_breaches(inputs, managed, named))
    out.unmanaged = [
        build_unmanaged_element(o, live) for o in unmanaged if not is_ignored(workspace, o.address)
    ]
    seen = last_seen(inputs)
    out.offline = [
        _offline_element(inputs, key, seen.get(key))
        for key, facts in sorted(live.domains.items())
        if not facts.reachable
    ]
    out.pending = _count_pending(inputs)
    out.diagnostics += check_never_answered(inputs)
    apply_mutes(out, workspace.drift.mute, inputs.now)
    out.declared_at = {
        r.address: d.range
        for r in out.resource_drift
        if (d := workspace.resources.get(Address.parse(r.address))) is not None
    }
    out.diagnostics += [*_unlisted_diagnostics(live), *note_unread_replicas(live)]
    out.exit_code = int(_exit_code(out, options, live))
    return out


def judge_status(inputs: PlanInputs, found: Status, flows: Iterable[FlowHealth]) -> ExitCode:
    """Return 2 for what `drift` would fail for, of all that the status names; 1 for an error."""
    workspace = inputs.workspace
    out = Drift(found.jsplan_version, found.workspace, found.environment, found.timestamp, found.id)
    _add_health(out, workspace, found.interrupted, flows)
    named = [
        {"address": item["address"]} | breach
        for item in (*found.streams, *found.consumers)
        for breach in item["thresholds"]
    ]
    shown = {finding.address for finding in found.diagnostics}
    unreadable = [address for address in inputs.live.unreadable if str(address) in shown]
    named += _find_missing_servers(inputs, unreadable)
    out.thresholds = [
        breach for breach in named if not is_ignored(workspace, Address.parse(breach["address"]))
    ]
    apply_mutes(out, workspace.drift.mute, inputs.now)
    failed = any(finding.severity == "error" for finding in found.diagnostics) or any(
        inputs.live.domains[str(row["domain"])].has_error for row in found.domains
    )
    return _exit_code(out, DriftOptions(), inputs.live) or (
        ExitCode.ERROR if failed else ExitCode.OK
    )


def _add_health(
    out: Drift,
    workspace: Workspace,
    interrupted: Iterable[dict[str, Any]],
    flows: Iterable[FlowHealth],
) -> None:
    """Add what is interrupted and the flows, without what `drift: ignore` names."""
    out.interrupted = [
        item for item in interrupted if not is_ignored(workspace, Address.parse(item["address"]))
    ]
    out.replication = [
        with_severity(found.to_json())
        for found in flows
        if not is_ignored(workspace, found.flow.downstream)
    ]


def _find_breaches(
    inputs: PlanInputs, managed: list[Address], interrupted: Collection[Address]
) -> Iterator[dict[str, Any]]:
    """Yield the elements of `thresholds`."""
    now = int(inputs.now.timestamp()) * SECOND
    for address in managed:
        if (found := inputs.live.get(address)) is not None:
            for breach in find_health(inputs, found, now, interrupted):
                yield {"address": str(address)} | breach.to_json()
    yield from _find_missing_servers(inputs, managed)


def _find_missing_servers(
    inputs: PlanInputs, addresses: Iterable[Address]
) -> Iterator[dict[str, Any]]:
    """Yield an element of `thresholds` for each object that no server has that answers."""
    for address in addresses:
        if lacks_server(inputs.live.unreadable.get(address, "unsupported")):
            yield {"address": str(address)} | missing_servers_breach().to_json()


def _compare_managed(
    out: Drift, inputs: PlanInputs, address: Address, named: Collection[Address]
) -> None:
    """Add the drift of one resource, or the reason why it cannot be compared now."""
    if reason := _unreadable_reason(inputs, address):
        out.deferred.append(Deferred(str(address), reason))
        return
    progress = "" if address.is_content else describe_interruption(inputs, address)
    if progress:
        if address not in named:
            out.deferred.append(Deferred(str(address), f"{INTERRUPTED_REPLACEMENT}: {progress}"))
        return
    find = detect_content_drift if address.is_content else detect_drift
    if (found := find(inputs, address)) is not None:
        out.resource_drift.append(found)


def _unreadable_reason(inputs: PlanInputs, address: Address) -> str:
    """Return why the resource cannot be read; empty if it can."""
    live = inputs.live
    if not live.is_reachable(address.domain):
        return live.domains[address.domain].offline_text
    if address.is_content:
        return deferral(inputs, address)
    if address in live.unreadable:
        return f"it cannot be read: {live.unreadable[address]}"
    return ""


def _offline_element(inputs: PlanInputs, key: str, seen: datetime | None) -> dict[str, object]:
    facts = inputs.live.domains[key]
    return {
        "domain": key,
        "reason": facts.short_reason,
        "may_be_offline": None if facts.has_error else inputs.workspace.domains[key].may_be_offline,
        "last_seen": format_timestamp(seen) if seen else None,
        "excused": is_within_offline_limit(inputs, key, seen),
    }


def _count_pending(inputs: PlanInputs) -> int:
    """Count the resources whose files differ from the last applied configuration."""
    resources = inputs.workspace.resources
    count = sum(
        1
        for address, declared in resources.items()
        if address in inputs.selected
        and address not in inputs.entries
        and not is_past(declared, inputs.now)
    )
    for address, entry in inputs.entries.items():
        if address in inputs.selected:
            same = address in resources and inputs.declared_fields(address) == entry.declared
            count += not (same or is_unknown_entry(inputs, address))
    return count


def is_unknown_entry(inputs: PlanInputs, address: Address) -> bool:
    """Check whether the value of an entry is not known without its environment variable."""
    return address.is_content and is_unknown(inputs.workspace.resources.get(address))


def _unlisted_diagnostics(live: Live) -> Iterable[Diagnostic]:
    for domain, reason in sorted(live.unlisted.items()):
        text = (
            f"what else is in domain {domain} cannot be listed,"
            f" so what is unmanaged there is not known: {reason}"
        )
        yield Diagnostic(
            "warning",
            "JS447",
            text,
            "Let this user ask STREAM.NAMES, CONSUMER.NAMES and their INFO.",
            f"{domain}/**",
        )


def _exit_code(out: Drift, options: DriftOptions, live: Live) -> ExitCode:
    """Return the exit code. For drift, 2 comes before 1."""
    counts = out.summary
    failing = {
        "changed": counts["changed"],
        "missing": counts["missing"],
        "replication": any(flow["healthy"] is False for flow in out.replication),
        "threshold": any(breach["level"] == "critical" for breach in out.thresholds),
        "unmanaged": counts["unmanaged"],
    }
    if (out.interrupted and options.fail_on) or any(failing[what] for what in options.fail_on):
        return ExitCode.CHANGES
    unread = any(not domain["excused"] for domain in out.offline) or (
        live.unlisted and "unmanaged" in options.fail_on
    )
    return combine_exit_codes([ExitCode.ERROR] if unread else [])


def build_unmanaged_element(found: LiveObject, live: Live) -> Unmanaged:
    """Build the element of `unmanaged` for one object; `live` has the managed streams."""
    address, state = found.address, found.state
    messages = state.get("messages", state.get("num_pending"))
    return Unmanaged(
        str(address),
        address.kind,
        messages,
        state.get("bytes"),
        found.created,
        severity=_severity(found, live),
        ephemeral=found.is_ephemeral,
    )


def _severity(found: LiveObject, live: Live) -> Severity:
    """Return `functional` for a consumer that affects what a managed stream keeps."""
    parent = found.address.parent
    stream = live.get(parent) if parent is not None else None
    decides = stream is not None and get_retention(stream.raw) != "limits"
    return "functional" if decides else "cosmetic"


#: First words of causes that lose messages; the others only delay them.
_LOSING_CAUSES: Final = ("origin re-created", "origin went back", "draining a workqueue")


def with_severity(flow: dict[str, Any]) -> dict[str, Any]:
    """Return an element of `replication`, with a severity unless it is healthy."""
    if flow["healthy"] is not False:
        return flow
    severity: Severity = (
        "destructive" if str(flow.get("cause") or "").startswith(_LOSING_CAUSES) else "functional"
    )
    return flow | {"severity": severity}


#: What a mute needs of a finding: its address, its changed fields, and what `mutes` shows of it.
Finding = tuple[str, set[str], dict[str, Any]]


def _describe_change(resource: ResourceChange) -> Finding:
    fields = {field.path.split(".")[0].split("[")[0] for field in resource.change.fields}
    kind = "missing" if resource.change.after is None else "changed"
    return resource.address, fields, {"kind": kind, "severity": resource.severity}


def _describe_flow(flow: dict[str, Any]) -> Finding | None:
    severity = flow.get("severity", "functional")
    shown = {"kind": "replication", "severity": severity}
    return (str(flow["to"]), set(), shown) if flow["healthy"] is False else None


def _describe_breach(breach: dict[str, Any]) -> Finding:
    severity = threshold_severity(breach)
    shown = {"kind": "threshold", "severity": severity, "key": breach["key"]}
    return breach["address"], set(), shown


def _describe_unmanaged(item: Unmanaged) -> Finding:
    return item.address, set(), {"kind": "unmanaged", "severity": item.severity}


#: How the elements of each list of findings are described; None is no finding.
_DESCRIBE: Final[dict[str, Callable[[Any], Finding | None]]] = {
    "resource_drift": _describe_change,
    "replication": _describe_flow,
    "thresholds": _describe_breach,
    "unmanaged": _describe_unmanaged,
}


def apply_mutes(drift: Drift, mutes: Collection[Mute], now: datetime) -> None:
    """Move each finding that a mute covers to `mutes`; warn about each expired mute."""
    day = now.date().isoformat()
    found = {
        name: [(item, describe(item)) for item in getattr(drift, name)]
        for name, describe in _DESCRIBE.items()
    }
    for name, items in found.items():
        kept = [item for item, finding in items if not _move_if_muted(drift, mutes, day, finding)]
        setattr(drift, name, kept)
    every = [finding for items in found.values() for _, finding in items if finding is not None]
    for mute_ in mutes:
        if is_expired(mute_, day):
            covered = sum(_covers(mute_, address, fields) for address, fields, _ in every)
            drift.diagnostics.append(_expiry_warning(mute_, covered))


def is_expired(mute_: Mute, day: str) -> bool:
    """Return True if it ended before the day (`2026-12-31`); its last day is included."""
    return mute_.until is not None and day > mute_.until


def _move_if_muted(drift: Drift, mutes: Iterable[Mute], day: str, finding: Finding | None) -> bool:
    if finding is None:
        return False
    address, fields, shown = finding
    for mute_ in mutes:
        if not is_expired(mute_, day) and _covers(mute_, address, fields):
            about = {name: getattr(mute_, name) for name in ("owner", "reason", "until")}
            about["fields"] = list(mute_.fields)
            drift.mutes.append({"address": address, **shown, **about})
            return True
    return False


def _covers(mute_: Mute, address: str, drifted: Collection[str]) -> bool:
    """Return True if the mute covers a finding. A mute of fields covers drift of these only."""
    return _matches_address(mute_.address, address) and (
        not mute_.fields or (bool(drifted) and set(drifted) <= set(mute_.fields))
    )


def _matches_address(glob: str, address: str) -> bool:
    try:
        return matches(glob, Address.parse(address))
    except ValueError:  # a downstream in no domain of the workspace
        return glob == address


def _expiry_warning(mute_: Mute, covered: int) -> Diagnostic:
    again = "nothing is left that it covered"
    if covered:
        again = f"{covered} finding{'s are' if covered != 1 else ' is'} reported again"
    return Diagnostic(
        "warning",
        "JS490",
        f"the mute of {mute_.address} expired on {mute_.until}: {again}",
        f"It was muted by {mute_.owner}: {mute_.reason}."
        " Fix the findings, set another date, or remove the mute.",
        range=mute_.range,
    )
