"""Interrupted replacements as text; they come first, since they reject publishers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jsplan.render.escape import safe

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jsplan.render.lines import Lines


def render_interruptions(lines: Lines, found: Iterable[dict[str, Any]]) -> None:
    """Render two lines for each: what is wrong, and what ends it."""
    for item in found:
        lines.add(0, (safe(item["summary"]), "bad"))
        lines.add(2, (safe(item["address"]), "strong"), f": {safe(item['detail'])}")
        lines.blank()
