"""JS223: two or four replicas."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams with an even number of replicas."""
    for item in view.streams():
        if item.replicas in (2, 4):
            needed = item.replicas // 2 + 1
            text = (
                f"{item.replicas} replicas need {needed} for every write,"
                f" so only {item.replicas - needed} may be offline, as with {item.replicas - 1}"
            )
            yield Hit(item.address, text, "num_replicas")


RULE = Rule(
    "JS223",
    "warning",
    check,
    why=(
        "The replicas of a stream decide by majority. Of two replicas both must be online, so the"
        " stream fails with either server: it is less available than one replica. Four are no"
        " more available than three, and slower."
    ),
    fix="Write num_replicas: 3 (or 5, or 1).",
)
