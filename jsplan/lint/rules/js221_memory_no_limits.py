"""JS221: a stream in memory that grows until the memory is full."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js220_no_limits import is_unlimited
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams in memory without a limit."""
    for item in view.streams():
        if is_unlimited(item) and item.config.get("storage") == "memory":
            yield Hit(
                item.address,
                "is in memory and has no max_age, max_bytes, max_msgs or max_msgs_per_subject",
                "storage",
            )


RULE = Rule(
    "JS221",
    "warning",
    check,
    why="Memory is the scarcest resource of a server, and streams share it with everything else.",
    fix="Add max_bytes, or keep the stream on disk.",
)
