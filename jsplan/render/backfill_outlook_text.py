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

_STATUS = {"new": ("not run yet", "warn"), "begun": ("begun and not done", "warn"), "done": ("done", "good")}
_FOUND = {
    COMPARED: "compared with what the target has, by headers only", "counted": "counted by the origin's server", "unknown": "not known"
}  # fmt: skip


def render(found: Outlook, console: Console) -> None:
    """Each origin with what is missing, then by what it is copied, about how long that takes, and the command."""
    lines = Lines()
    words, role = _STATUS[found.status]
    lines.add(0, (safe(found.name), "strong"), "  ", (words, role))
    for leg in found.legs:
        _leg(lines, leg, at_most="at most " if found.before else "")
    if found.before and found.messages:
        words = " and ".join(f"`{name}`" for name in found.before)
        lines.add(2, f"counted before {words}: what that leaves out Spark finds when it copies")
    if found.status != "done":
        lines.add(2, f"by {found.strategy}: {safe(found.reason)}")
        if found.against:
            lines.add(2, ("not possible: ", "bad"), safe(found.against))
        if found.estimate is not None and found.messages:
            lines.add(2, f"about {_time(found.estimate['seconds'])}, an estimate: {safe(found.estimate['basis'])}")
    lines.blank()
    lines.add(0, (line(found), "strong"))
    if found.status != "done" and not found.against:
        lines.add(0, f"To copy it: {safe(found.command)}")
    lines.print(console)


def _leg(lines: Lines, leg: LegOutlook, *, at_most: str) -> None:
    frozen = ", frozen" if leg.frozen else ""
    words = f"  {range_words(leg.first, leg.last)}{frozen}" if not leg.error else ""
    lines.add(2, (safe(leg.origin), "strong"), " -> ", (safe(leg.target), "strong"), words)
    if leg.error:
        lines.add(6, ("nothing is known of it: ", "bad"), safe(leg.error))
    elif leg.done:
        lines.add(6, ("done: what is missing by now a run finds", "dim"))
    else:
        missing = f"{at_most}{count(leg.messages or 0, 'message')} missing, about {units.format_bytes(leg.bytes or 0)}"
        lines.add(6, missing, (f" ({_FOUND[leg.measured]})", "dim"))
    if leg.there:
        lines.add(6, f"{count(leg.there, 'message')} of it there already")
    if leg.gone:
        lines.add(6, ("gap: ", "warn"), f"{count(leg.gone, 'message')} of the range gone at the origin")


def line(found: Outlook) -> str:
    """`Backfill: 1,000 messages to copy.`, or that there is nothing."""
    if found.status == "done":
        return "Backfill: done. Nothing to copy."
    at_most = "at most " if found.before else ""
    return f"Backfill: {at_most}{count(found.messages, 'message')} to copy." if found.messages else "Backfill: nothing to copy."


def _time(seconds: float) -> str:
    return units.format_duration(max(1, round(seconds)) * units.SECOND)
