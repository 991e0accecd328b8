"""The content of a backup before a restore, and the summary of a restore, as text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jsplan.disk import display_path
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text, format_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.apply import ApplyResult
    from jsplan.documents.plan import Plan

_HEADS = {0: "Restore complete!", 130: "Restore interrupted."}


def render(plan: Plan, console: Console) -> None:
    """Render the content of the backup, stream by stream."""
    lines = Lines()
    lines.add(
        0, ("From the backup in ", "strong"), safe(display_path(Path(plan.options["folder"]))), ":"
    )
    lines.blank()
    for one in plan.options["restore"]:
        parts = [count_text(one["messages"], "message"), format_bytes(one["bytes"])]
        parts += [count_text(one["consumers"], "consumer")] if one["consumers"] else []
        came = f", saved from {safe(one['from'])}" if one["from"] != one["address"] else ""
        there = (
            ("  is there already, as it was saved", "dim")
            if one["exists"]
            else f"  {', '.join(parts)} of {one['taken_at']}{came}"
        )
        lines.add(2, safe(one["address"]), there)
    lines.blank()
    lines.print(console)


def summary_line(plan: Plan, result: ApplyResult) -> str:
    """Return `Restore complete! Streams: 2 restored, 1 there already.`, or another result."""
    done = sum(1 for step in result.steps if step.op == "stream.restore" and step.status == "done")
    failed = sum(1 for step in result.steps if step.op == "stream.restore") - done
    there = sum(1 for one in plan.options["restore"] if one["exists"])
    parts = [f"{done} restored", f"{there} there already"] + (
        [f"{failed} not restored"] if failed else []
    )
    return f"{_HEADS.get(result.exit_code, 'Restore incomplete.')} Streams: {', '.join(parts)}."
