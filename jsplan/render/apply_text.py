"""The result of an apply as text: failures in full, success in one line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jsplan import group_domains
from jsplan.disk import display_path
from jsplan.render import summary
from jsplan.render.diagnostics_text import render_interruptions
from jsplan.render.escape import safe, safe_lines
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.apply import ApplyResult, StepResult

_MAX_SHOWN = 10

_HEADS: Final = {
    "failed": ("Error: ", "bad"),
    "deferred": ("Deferred: ", "warn"),
    "skipped": ("Skipped: ", "warn"),
}


def render(result: ApplyResult, console: Console, line: str | None = None) -> None:
    """Render failed, unknown and skipped steps, then the greppable line.

    The line is that of an apply unless another one is given.
    """
    lines = Lines()
    render_interruptions(lines, result.interrupted)
    by_status: dict[str, list[StepResult]] = {}
    for step in result.steps:
        by_status.setdefault(step.status, []).append(step)
    for status, says in (
        ("failed", "failed"),
        ("unknown", "was sent and never answered; the next plan shows how it ended"),
    ):
        ended = [
            (step.address.partition("/")[0], (step.address, step.op, step.error or ""))
            for step in by_status.get(status, [])
        ]
        for what, domains in group_domains.group_by_domain(ended):
            _render_failed(lines, what, says, domains)
    _render_skipped(lines, by_status.get("skipped", []))
    if len(by_status.get("done", [])) < len(result.steps):
        lines.add(0, "State says exactly how far this went. See the rest with: jsplan plan")
    if len(lines):
        lines.blank()
    lines.add(0, (line or summary.apply_line(result), "bad" if result.exit_code else "good"))
    if left := summary.deferred_line(d.address for d in result.deferred):
        lines.add(0, left)
    for copy in result.backfills:
        _render_backfill(lines, copy)
    if saved := result.backup:
        lines.add(
            0,
            "Saved before messages were deleted: "
            f"{count_text(len(saved['streams']), 'stream')} in "
            f"{safe(display_path(Path(saved['folder'])))}",
        )
    lines.print(console)


def _render_backfill(lines: Lines, copy: dict[str, Any]) -> None:
    """Render the result of one backfill."""
    name = (f"backfill {safe(copy['name'])}", "strong")
    if copy["status"] == "done":
        gaps = ""
        if copy["gap_messages"]:
            gaps = f"; {count_text(copy['gap_messages'], 'message')} were gone before"
        lines.add(0, name, f": {count_text(copy['copied'], 'message')} copied and compared{gaps}")
        return
    lines.add(0, _HEADS[copy["status"]], name)
    for line in safe_lines(copy["error"] or ""):
        lines.add(2, line)


def _render_failed(lines: Lines, what: tuple[str, str, str], says: str, domains: list[str]) -> None:
    """Render what failed and why, once for all domains with the same failure."""
    address, op, error = what
    where = f", {group_domains.format_domains(domains)}" if len(domains) > 1 else ""
    lines.add(
        0, ("Error: ", "bad"), (safe(address), "strong"), f" {op} {says}", (safe(where), "strong")
    )
    for line in safe_lines(error):
        lines.add(2, line)


def _render_skipped(lines: Lines, skipped: list[StepResult]) -> None:
    """Render the skipped steps: those of offline domains together, then those behind a failure."""
    offline = [step for step in skipped if (step.error or "").startswith("domain ")]
    for reason, domains in group_domains.group_by_domain(
        (step.address.partition("/")[0], step.error or "") for step in offline
    ):
        where = ""
        if len(set(domains)) > 1:
            where = f", {group_domains.format_domains(list(dict.fromkeys(domains)))}"
        lines.add(
            0,
            ("Not done", "warn"),
            f": {safe(reason)}{safe(where)} ({count_text(len(domains), 'step')})",
        )
    steps = [step for step in skipped if step not in offline]
    if not steps:
        return
    lines.add(
        0,
        ("Not done", "warn"),
        f", since it depends on what failed ({count_text(len(steps), 'step')}):",
    )
    for step in steps[:_MAX_SHOWN]:
        lines.add(4, f"{safe(step.address)} {step.op}")
    if len(steps) > _MAX_SHOWN:
        lines.add(4, (f"and {len(steps) - _MAX_SHOWN:,} more", "dim"))
