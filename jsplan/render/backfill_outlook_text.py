"""What a backfill would copy, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan import units
from jsplan.documents.backfill_plan import COMPARED
from jsplan.render.backfill_text import range_words
from jsplan.render.lines import Lines
from jsplan.render.safe import safe
from jsplan.render.summary import count

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.backfill_plan import LegOutlook, Outlook

_STATUS = {"new": ("not run yet", "warn"), "started": ("started, not finished", "warn"), "done": ("done", "good")}
_FOUND = {
    COMPARED: "compared with what the target has, by headers only", "counted": "counted by the origin's server", "unknown": "not known"
}  # fmt: skip


def render(found: Outlook, console: Console) -> None:
    """Each origin with what is missing, then by what it is copied, about how long that takes, and the command."""
    lines = Lines()
    words, role = _STATUS[found.status]
    lines.add(0, (safe(found.name), "strong"), "  ", (words, role))
    for leg in found.origins:
        _leg(lines, leg, at_most="at most " if found.filtered_by else "")
    if found.filtered_by and found.messages:
        words = " and ".join(f"`{name}`" for name in found.filtered_by)
        lines.add(2, f"counted before {words}: what that leaves out Spark finds when it copies")
    if found.status != "done":
        lines.add(2, f"by {found.strategy}: {safe(found.reason)}")
        if found.strategy_problem:
            lines.add(2, ("not possible: ", "bad"), safe(found.strategy_problem))
        if found.estimate is not None and found.messages:
            lines.add(2, f"about {_time(found.estimate['seconds'])}, an estimate: {safe(found.estimate['basis'])}")
    lines.blank()
    lines.add(0, (line(found), "strong"))
    if found.status != "done" and not found.strategy_problem:
        lines.add(0, f"To copy it: {safe(found.command)}")
    lines.print(console)


def _leg(lines: Lines, leg: LegOutlook, *, at_most: str) -> None:
    pinned = ", pinned" if leg.pinned else ""
    words = f"  {range_words(leg.first, leg.last)}{pinned}" if not leg.error else ""
    lines.add(2, (safe(leg.origin), "strong"), " -> ", (safe(leg.target), "strong"), words)
    if leg.error:
        lines.add(6, ("not measured: ", "bad"), safe(leg.error))
    elif leg.done:
        lines.add(6, ("done. A run copies what is missing by now", "dim"))
    else:
        missing = f"{at_most}{count(leg.messages or 0, 'message')} pending, about {units.format_bytes(leg.bytes or 0)}"
        lines.add(6, missing, (f" ({_FOUND[leg.measured]})", "dim"))
    if leg.in_target:
        lines.add(6, f"{count(leg.in_target, 'message')} already in the target")
    if leg.gap_messages:
        lines.add(6, ("gap: ", "warn"), f"{count(leg.gap_messages, 'message')} of the range no longer at the origin")


def line(found: Outlook) -> str:
    """`Backfill: 1,000 messages to copy.`, or that there is nothing."""
    if found.status == "done":
        return "Backfill: done. Nothing to copy."
    at_most = "at most " if found.filtered_by else ""
    return f"Backfill: {at_most}{count(found.messages, 'message')} to copy." if found.messages else "Backfill: nothing to copy."


def _time(seconds: float) -> str:
    return units.format_duration(max(1, round(seconds)) * units.SECOND)
