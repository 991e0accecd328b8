"""Moves muted findings out of a drift document, until the date of the mute."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from jsplan.address import Address, matches
from jsplan.config.model import Mute
from jsplan.diagnostics import Diagnostic
from jsplan.documents.drift import Drift, threshold_severity
from jsplan.documents.plan import ResourceChange


def apply_mutes(drift: Drift, mutes: Iterable[Mute], now: datetime) -> None:
    """Move each finding that a mute covers to `mutes`; warn about each expired mute."""
    day = now.date().isoformat()
    listed = list(mutes)
    active = [m for m in listed if not is_expired(m, day)]
    expired = [(m, _count_covered(m, drift)) for m in listed if is_expired(m, day)]
    drift.resource_drift = [
        r
        for r in drift.resource_drift
        if not _move_if_muted(drift, active, r.address, _drifted_fields(r), _resource_severity(r))
    ]
    drift.replication = [
        f
        for f in drift.replication
        if f["healthy"] is not False
        or not _move_if_muted(drift, active, _flow_target(f), (), _flow_severity(f))
    ]
    drift.thresholds = [
        t
        for t in drift.thresholds
        if not _move_if_muted(
            drift,
            active,
            t["address"],
            (),
            {"kind": "threshold", "severity": threshold_severity(t), "key": t["key"]},
        )
    ]
    drift.unmanaged = [
        u
        for u in drift.unmanaged
        if not _move_if_muted(
            drift, active, u.address, (), {"kind": "unmanaged", "severity": u.severity}
        )
    ]
    drift.diagnostics += [_expiry_warning(m, covered) for m, covered in expired]


def is_expired(mute_: Mute, day: str) -> bool:
    """Return True if it ended before the day (`2026-12-31`); its last day is included."""
    return mute_.until is not None and day > mute_.until


def _move_if_muted(
    drift: Drift, mutes: list[Mute], address: str, fields: Iterable[str], severity: dict[str, Any]
) -> bool:
    mute_ = next((m for m in mutes if _covers(m, address, fields)), None)
    if mute_ is not None:
        owner = {
            "owner": mute_.owner,
            "reason": mute_.reason,
            "until": mute_.until,
            "fields": list(mute_.fields),
        }
        drift.mutes.append({"address": address, **severity, **owner})
    return mute_ is not None


def _covers(mute_: Mute, address: str, fields: Iterable[str]) -> bool:
    """Return True if the mute covers a finding. A mute of fields covers drift of these only."""
    drifted = set(fields)
    return _matches_address(mute_.address, address) and (
        not mute_.fields or (bool(drifted) and drifted <= set(mute_.fields))
    )


def _matches_address(glob: str, address: str) -> bool:
    try:
        return matches(glob, Address.parse(address))
    except ValueError:  # a downstream in no domain of the workspace
        return glob == address


def _drifted_fields(resource: ResourceChange) -> set[str]:
    return {field.path.split(".")[0].split("[")[0] for field in resource.change.fields}


def _resource_severity(resource: ResourceChange) -> dict[str, Any]:
    return {
        "kind": "missing" if resource.change.after is None else "changed",
        "severity": resource.severity,
    }


def _flow_target(flow: dict[str, Any]) -> str:
    return str(flow["to"])


def _flow_severity(flow: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "replication", "severity": flow.get("severity", "functional")}


def _count_covered(mute_: Mute, drift: Drift) -> int:
    found = [(r.address, _drifted_fields(r)) for r in drift.resource_drift] + [
        (u.address, set[str]()) for u in drift.unmanaged
    ]
    found += [(_flow_target(f), set[str]()) for f in drift.replication if f["healthy"] is False]
    found += [(t["address"], set[str]()) for t in drift.thresholds]
    return sum(_covers(mute_, address, fields) for address, fields in found)


def _expiry_warning(mute_: Mute, covered: int) -> Diagnostic:
    again = (
        f"{covered} finding{'s are' if covered != 1 else ' is'} reported again"
        if covered
        else "nothing is left that it covered"
    )
    return Diagnostic(
        "warning",
        "JS490",
        f"the mute of {mute_.address} expired on {mute_.until}: {again}",
        f"It was muted by {mute_.owner}: {mute_.reason}."
        " Fix the findings, set another date, or remove the mute.",
        range=mute_.range,
    )
