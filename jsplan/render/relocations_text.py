"""Relocations that have begun, as a table of the status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from jsplan.render import grid
from jsplan.render.escape import safe
from jsplan.units import format_age, parse_instant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.render.lines import Lines

_ROLE: Final = {"copying": "warn", "prepared": "good", "cut-over": "bad", "activated": "warn"}


def render_relocations(
    lines: Lines, found: Iterable[dict[str, Any]], now: int, width: int | None = None
) -> None:
    """Render one row for each: both sides, what the copy lacks, and the age of its last message.

    `now` is ns since the epoch.
    """
    rows: list[list[grid.Cell]] = [
        [
            safe(item["from"]),
            safe(item["to"]),
            f"{item['lag']:,}",
            format_age(now - parse_instant(item["last_message"])) if item["last_message"] else "",
            (item["phase"], _ROLE.get(item["phase"], "warn")),
        ]
        for item in found
    ]
    if not rows:
        return
    lines.add(0, ("Relocations", "strong"))
    head = ("from", "to", "behind", "newest", "state")
    grid.add_table(lines, head, rows, left=2, width=width)
    lines.blank()
