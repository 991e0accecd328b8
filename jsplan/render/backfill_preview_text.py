"""The preview of a backfill as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsplan import units
from jsplan.documents.backfill_preview import BOUNDED, COMPARED
from jsplan.render.backfill_text import format_range
from jsplan.render.escape import safe
from jsplan.render.lines import Lines
from jsplan.units import count_text

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.backfill_preview import BackfillPreview, OriginPreview

_STATUS = {
    "new": ("not run yet", "warn"),
    "started": ("started, not finished", "warn"),
    "done": ("done", "good"),
}
_MEASURED = {
    COMPARED: "compared with what the target has, by headers only",
    BOUNDED: "not compared with what the target has: that needs the extra `spark`",
    "counted": "counted by the origin's server", "unknown": "not known"
}  # fmt: skip


def render(found: BackfillPreview, console: Console) -> None:
    """Render each origin with its pending messages, the strategy, an estimate and the command."""
    lines = Lines()
    words, role = _STATUS[found.status]
    lines.add(0, (safe(found.name), "strong"), "  ", (words, role))
    for origin in found.origins:
        _render_origin(lines, origin, at_most=_say_at_most(found))
    if found.filtered_by and found.messages:
        words = " and ".join(f"`{name}`" for name in found.filtered_by)
        lines.add(2, f"counted before {words}: what that leaves out Spark finds when it copies")
    if found.status != "done":
        lines.add(2, f"by {found.strategy}: {safe(found.reason)}")
        if found.strategy_problem:
            lines.add(2, ("not possible: ", "bad"), safe(found.strategy_problem))
        if found.estimate is not None and found.messages:
            lines.add(
                2,
                (
                    f"about {_time(found.estimate.seconds)}, an estimate: "
                    f"{safe(found.estimate.basis)}"
                ),
            )
    lines.blank()
    lines.add(0, (summary_line(found), "strong"))
    if found.status != "done" and not found.strategy_problem:
        lines.add(0, f"To copy it: {safe(found.command)}")
    lines.print(console)


def _render_origin(lines: Lines, origin: OriginPreview, *, at_most: str) -> None:
    pinned = ", pinned" if origin.pinned else ""
    words = f"  {format_range(origin.first, origin.last)}{pinned}" if not origin.error else ""
    lines.add(2, (safe(origin.origin), "strong"), " -> ", (safe(origin.target), "strong"), words)
    if origin.error:
        lines.add(6, ("not measured: ", "bad"), safe(origin.error))
    elif origin.done:
        lines.add(6, ("done. A run copies what is missing by now", "dim"))
    else:
        missing = (
            f"{at_most}{count_text(origin.messages or 0, 'message')} pending, about "
            f"{units.format_bytes(origin.bytes or 0)}"
        )
        lines.add(6, missing, (f" ({_MEASURED[origin.measured]})", "dim"))
    if origin.in_target:
        lines.add(6, f"{count_text(origin.in_target, 'message')} already in the target")
    if origin.gap_messages:
        lines.add(
            6,
            ("gap: ", "warn"),
            f"{count_text(origin.gap_messages, 'message')} of the range no longer at the origin",
        )


def summary_line(found: BackfillPreview) -> str:
    """Return `Backfill: 1,000 messages to copy.`, or that there is nothing to copy."""
    if found.status == "done":
        return "Backfill: done. Nothing to copy."
    at_most = _say_at_most(found)
    if unmeasured := sum(bool(origin.error) for origin in found.origins):
        counted = f"{at_most}{count_text(found.messages, 'message')} to copy of the others"
        rest = f", {counted}" if unmeasured < len(found.origins) else ""
        return f"Backfill: {count_text(unmeasured, 'origin')} not measured{rest}."
    return (
        f"Backfill: {at_most}{count_text(found.messages, 'message')} to copy."
        if found.messages
        else "Backfill: nothing to copy."
    )


def _say_at_most(found: BackfillPreview) -> str:
    is_bound = found.filtered_by or any(one.measured == BOUNDED for one in found.origins)
    return "at most " if is_bound else ""


def _time(seconds: float) -> str:
    return units.format_duration(max(1, round(seconds)) * units.SECOND)
