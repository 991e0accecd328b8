"""JS205: a mirror with lower limits than its origin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import LintItem, View
from jsplan.topology.replication_graph import is_unfiltered
from jsplan.units import format_duration, format_size

#: Limits that remove messages; 0 and -1 are none.
LIMITS = ("max_age", "max_bytes", "max_msgs", "max_msgs_per_subject")


def full_mirrors(view: View) -> Iterator[tuple[LintItem, LintItem]]:
    """Yield mirrors without a filter, each with its origin, if known."""
    for item in view.streams():
        if item.config.get("mirror"):
            for edge in view.origins.get(item.address, ()):
                origin = view.all_streams.get(edge.origin)
                if origin is not None and is_unfiltered(edge.config):
                    yield item, origin


def limit_of(item: LintItem, name: str) -> int:
    """Return the limit, or 0 for none."""
    return max(0, int(item.config.get(name) or 0))


def format_limit(name: str, value: Any) -> str:
    """Format a limit as the files have it."""
    if name == "max_age":
        return format_duration(value)
    size = format_size(value) if name == "max_bytes" else "."
    return str(value) if "." in size else size


def check(view: View) -> Iterator[Hit]:
    """Each limit that is lower in the mirror."""
    for item, origin in full_mirrors(view):
        for name in LIMITS:
            ours, theirs = limit_of(item, name), limit_of(origin, name)
            if ours and (not theirs or ours < theirs):
                limit = format_limit(name, theirs) if theirs else "no limit"
                yield Hit(
                    item.address,
                    f"{name} is {format_limit(name, ours)};"
                    f" its origin {origin.address} has {limit}",
                    name,
                )


RULE = Rule(
    "JS205",
    "note",
    check,
    why=(
        "A mirror takes no limit from its origin: its own limits decide what it keeps. With lower"
        " limits it has fewer messages than its origin."
    ),
    fix=(
        "Give the mirror the limits of its origin, or ignore this with the reason why less is"
        " enough."
    ),
)
