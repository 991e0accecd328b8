"""The drift document as text: what changed, what is missing, what does not flow, what is nobody's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan import units
from jsplan.render import diagnostics_text, summary
from jsplan.render.lines import Lines
from jsplan.render.plan_text import drifted
from jsplan.render.safe import safe

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.drift import Drift

#: Unmanaged objects listed unless everything is wanted.
_SHOWN = 20


def render(drift: Drift, console: Console, *, verbose: bool = False) -> None:
    """Print all findings, the greppable summary last."""
    lines = Lines()
    _changed(lines, drift)
    _replication(lines, drift)
    _unmanaged(lines, drift, verbose=verbose)
    _away(lines, drift)
    _mutes(lines, drift, verbose=verbose)
    lines.print(console)
    diagnostics_text.render(drift.diagnostics, console, after=True)
    _summary(drift).print(console)


def _changed(lines: Lines, drift: Drift) -> None:
    if drift.resource_drift:
        lines.add(0, ("Changed outside of jsplan", "strong"), " since the last apply:")
        lines.blank()
    for resource in drift.resource_drift:
        drifted(lines, resource)


def _replication(lines: Lines, drift: Drift) -> None:
    sick = [flow for flow in drift.replication if not flow["healthy"]]
    if not sick:
        return
    lines.add(0, ("Replication that does not work:", "strong"))
    for flow in sick:
        ends = f"{safe(str(flow['from']))} -> {safe(str(flow['to']))}"
        cause = safe(str(flow.get("cause") or "no cause known"))
        lines.add(
            0, ("  ! ", "bad"), (ends, "strong"), f" ({flow['kind']}): {cause}{_behind(flow.get('origin_last_seq'), flow.get('last_seq'))}"
        )
    lines.blank()


def _behind(origin: object, copy: object) -> str:
    return f" [origin at {origin}, copy at {copy}]" if origin is not None and copy is not None else ""


def _unmanaged(lines: Lines, drift: Drift, *, verbose: bool) -> None:
    if not drift.unmanaged:
        return
    lines.add(0, ("On the servers, in no file and not in state:", "strong"))
    shown = drift.unmanaged if verbose else drift.unmanaged[:_SHOWN]
    for item in shown:
        amount = [summary.count(item.messages, "message")] if item.messages is not None else []
        amount += [units.format_bytes(item.bytes)] if item.bytes is not None else []
        amount += [f"created {safe(item.created)}"] if item.created else []
        lines.add(0, ("  ? ", "import"), safe(item.address), (f" [{', '.join(amount)}]" if amount else "", "dim"))
    if len(shown) < len(drift.unmanaged):
        lines.add(4, (f"and {len(drift.unmanaged) - len(shown):,} more; -v lists all", "dim"))
    lines.blank()


def _away(lines: Lines, drift: Drift) -> None:
    for domain in drift.away:
        name, expected = safe(str(domain.get("domain", "?"))), bool(domain.get("excused"))
        reason = safe(str(domain.get("reason") or "it cannot be reached"))
        head, role = ("Away", "dim") if expected else ("Not read", "bad")
        lines.add(0, (f"{head}: ", role), (name, "strong"), f" {reason}", " (within its may_be_offline)" if expected else "")
    if drift.away:
        lines.blank()


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
    if not (counts["changed"] or counts["missing"] or counts["unhealthy"] or counts["away"]):
        lines.add(0, (summary.NO_DRIFT, "good"))
    lines.add(0, (summary.drift_line(drift), "strong"))
    extra = [summary.count(counts["muted"], "finding") + " muted"] if counts["muted"] else []
    extra += [f"{summary.count(counts['pending'], 'resource')} pending in the files (see jsplan plan)"] if counts["pending"] else []
    if extra:
        lines.add(0, (f"{'; '.join(extra)}.", "dim"))
    if line := summary.deferred_line(d.address for d in drift.deferred):
        lines.add(0, line)
    return lines
