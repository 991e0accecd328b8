"""The drift document as text: changes, missing resources, replication, unmanaged objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan import group_domains
from jsplan.render import diagnostics_text, drift_rows, summary
from jsplan.render.diagnostics_text import render_interruptions
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.render.plan_text import add_drift
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.drift import Drift

#: Unmanaged objects that are listed without -v.
_MAX_SHOWN = 20


def render(drift: Drift, console: Console, *, verbose: bool = False) -> None:
    """Print all findings, the greppable summary last."""
    lines = Lines()
    render_interruptions(lines, drift.interrupted)
    add_drift(lines, drift.resource_drift, verbose=verbose)
    _replication(lines, drift)
    _thresholds(lines, drift)
    _unmanaged(lines, drift, verbose=verbose)
    _render_offline(lines, drift, verbose=verbose)
    _mutes(lines, drift, verbose=verbose)
    lines.print(console)
    diagnostics_text.render(drift.diagnostics, console, after=True)
    _summary(drift).print(console)


def _replication(lines: Lines, drift: Drift) -> None:
    unhealthy = [flow for flow in drift.replication if flow["healthy"] is False]
    if not unhealthy:
        return
    lines.add(0, ("Replication that does not work:", "strong"))
    for flow in unhealthy:
        ends = f"{safe(str(flow['from']))} -> {safe(str(flow['to']))}"
        cause = safe(str(flow.get("cause") or "no cause known"))
        lines.add(
            0,
            ("  ! ", "bad"),
            (ends, "strong"),
            f" ({flow['kind']}): "
            f"{cause}{_format_lag(flow.get('origin_last_seq'), flow.get('last_seq'))}",
        )
    lines.blank()


def _thresholds(lines: Lines, drift: Drift) -> None:
    if not drift.thresholds:
        return
    lines.add(0, ("Needs attention:", "strong"))
    for breach in drift.thresholds:
        role = "bad" if breach["level"] == "critical" else "warn"
        address, cause = safe(str(breach["address"])), safe(str(breach["cause"]))
        lines.add(0, ("  ! ", role), (address, "strong"), f": {cause}")
    lines.blank()


def _format_lag(origin: object, copy: object) -> str:
    return (
        f" [origin at {origin}, copy at {copy}]" if origin is not None and copy is not None else ""
    )


def _unmanaged(lines: Lines, drift: Drift, *, verbose: bool) -> None:
    if not drift.unmanaged:
        return
    lines.add(0, ("Unmanaged (on the servers, in no file and not in state):", "strong"))
    shown = drift.unmanaged if verbose else drift.unmanaged[:_MAX_SHOWN]
    for item in shown:
        amount = drift_rows.describe_unmanaged(item)
        amount += [item.severity] if item.severity != "cosmetic" else []
        shown_amount = f" [{', '.join(amount)}]" if amount else ""
        lines.add(0, ("  ? ", "import"), safe(item.address), (shown_amount, "dim"))
    if len(shown) < len(drift.unmanaged):
        lines.add(4, (f"and {len(drift.unmanaged) - len(shown):,} more; -v lists all", "dim"))
    lines.blank()


def _render_offline(lines: Lines, drift: Drift, *, verbose: bool) -> None:
    reasons = [
        (str(domain.get("domain", "?")), _offline_reason(domain)) for domain in drift.offline
    ]
    for (head, reason), domains in (
        [(w, [d]) for d, w in reasons] if verbose else group_domains.group_by_domain(reasons)
    ):
        names = domains[0] if len(domains) == 1 else group_domains.format_domains(domains)
        lines.add(
            0,
            (f"{head}: ", "dim" if head == "Offline" else "bad"),
            (safe(names), "strong"),
            f": {safe(reason)}",
        )
    if drift.offline:
        lines.blank()


def _offline_reason(domain: dict[str, Any]) -> tuple[str, str]:
    """Return `Offline` or `Not read` (not excused), and the reason."""
    reason = drift_rows.offline_reason(domain)
    if domain.get("excused"):
        return "Offline", f"{reason} (within its may_be_offline)"
    return "Not read", reason


def _mutes(lines: Lines, drift: Drift, *, verbose: bool) -> None:
    for mute in drift.mutes if verbose else ():
        until = f" until {safe(str(mute['until']))}" if mute.get("until") else ""
        lines.add(
            0,
            ("Muted: ", "dim"),
            safe(str(mute.get("address", "?"))),
            f" by {safe(str(mute.get('owner', '?')))}{until}: {safe(str(mute.get('reason', '')))}",
        )
    if verbose and drift.mutes:
        lines.blank()


def _summary(drift: Drift) -> Lines:
    lines, counts = Lines(), drift.summary
    if not (counts["changed"] or counts["missing"] or counts["unhealthy"] or counts["offline"]):
        lines.add(0, (summary.NO_DRIFT, "good"))
    lines.add(0, (summary.drift_line(drift), "strong"))
    extra = [count_text(counts["muted"], "finding") + " muted"] if counts["muted"] else []
    if counts["pending"]:
        extra.append(
            f"{count_text(counts['pending'], 'resource')} pending in the files (see jsplan plan)"
        )
    if extra:
        lines.add(0, (f"{'; '.join(extra)}.", "dim"))
    offline = {str(domain.get("domain")) for domain in drift.offline}
    for item in drift.deferred:
        if item.address.partition("/")[0] not in offline:
            lines.add(
                0,
                (
                    f"Not compared: {safe(item.address)}: {safe(item.reason)}. See jsplan plan.",
                    "warn",
                ),
            )
    if line := summary.deferred_line(
        d.address for d in drift.deferred if d.address.partition("/")[0] in offline
    ):
        lines.add(0, line)
    return lines
