"""How an apply ended, as text: failures in full, success in one line. Progress meanwhile is `progress`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan.render import summary
from jsplan.render.lines import Lines
from jsplan.render.safe import safe, safe_lines

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.apply import ApplyResult, StepResult

_SHOWN = 10


def render(result: ApplyResult, console: Console) -> None:
    """Failed, unknown and skipped steps, then the greppable line."""
    lines = Lines()
    by_status: dict[str, list[StepResult]] = {}
    for step in result.steps:
        by_status.setdefault(step.status, []).append(step)
    for status, says in (("failed", "failed"), ("unknown", "was sent and never answered; the next plan tells how it ended")):
        for step in by_status.get(status, []):
            _failed(lines, step, says)
    _skipped(lines, by_status.get("skipped", []))
    if len(by_status.get("done", [])) < len(result.steps):
        lines.add(0, "State says exactly how far this went. See the rest with: jsplan plan")
    if len(lines):
        lines.blank()
    lines.add(0, (summary.apply_line(result), "bad" if result.exit_code else "good"))
    if line := summary.deferred_line(d["address"] for d in result.deferred):
        lines.add(0, line)
    lines.print(console)


def _failed(lines: Lines, step: StepResult, says: str) -> None:
    lines.add(0, ("Error: ", "bad"), (safe(step.address), "strong"), f" {step.op} {says}")
    for line in safe_lines(step.error or ""):
        lines.add(2, line)


def _skipped(lines: Lines, steps: list[StepResult]) -> None:
    if not steps:
        return
    lines.add(0, ("Not done", "warn"), f", since it depends on what failed ({summary.count(len(steps), 'step')}):")
    for step in steps[:_SHOWN]:
        lines.add(4, f"{safe(step.address)} {step.op}")
    if len(steps) > _SHOWN:
        lines.add(4, (f"and {len(steps) - _SHOWN:,} more", "dim"))
