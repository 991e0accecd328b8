"""JS206: a mirror without limits of an origin that has limits."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import LIMITS, format_limit, full_mirrors, limit_of
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Mirrors without limits."""
    for item, origin in full_mirrors(view):
        theirs = [name for name in LIMITS if limit_of(origin, name)]
        if theirs and not any(limit_of(item, name) for name in LIMITS):
            limits = ", ".join(
                f"{name} {format_limit(name, limit_of(origin, name))}" for name in theirs
            )
            yield Hit(
                item.address,
                f"keeps everything for ever; its origin {origin.address} has {limits}",
                "mirror",
            )


RULE = Rule(
    "JS206",
    "note",
    check,
    why=(
        "A mirror takes no limit from its origin, so it keeps what the origin has removed, until"
        " its disk is full. That is right for an archive, and wrong for a fallback."
    ),
    fix=(
        "Give the mirror the limits of its origin, or ignore this with the reason that it is an"
        " archive."
    ),
)
