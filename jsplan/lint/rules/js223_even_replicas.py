"""JS223: two or four copies."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams whose copies cannot outvote each other."""
    for item in view.streams():
        if item.replicas in (2, 4):
            needed = item.replicas // 2 + 1
            text = f"{item.replicas} copies need {needed} for every write, so only {item.replicas - needed} may be away, as with {item.replicas - 1}"
            yield Hit(item.address, text, "num_replicas")


RULE = Rule(
    "JS223", "warning", check,
    why="The copies of a stream agree by majority. Two copies both have to be there, so that the stream fails with either "
        "server: it is less available than one copy. Four are no better than three, and slower.",
    fix="Write num_replicas: 3 (or 5, or 1).",
)  # fmt: skip
