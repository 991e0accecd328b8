"""JS232: compression of a stream in memory."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams in memory with compression."""
    for item in view.streams():
        if item.config.get("storage") == "memory" and item.config.get("compression") == "s2":
            yield Hit(item.address, "compression has no effect in memory", "compression")


RULE = Rule(
    "JS232",
    "note",
    check,
    why="The server accepts compression for a stream in memory, shows it, and does not compress.",
    fix="Remove it, or keep the stream on disk.",
)
