"""JS231: a duplicate window of hours."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import SECOND, format_duration

_LONG = 3600 * SECOND


def check(view: View) -> Iterator[Hit]:
    """Streams that remember ids for longer than an hour."""
    for item in view.streams():
        window = item.declared_fields.get("duplicate_window") or 0
        if window > _LONG:
            yield Hit(
                item.address,
                f"the id of every message is kept in memory for {format_duration(window)}",
                "duplicate_window",
            )


RULE = Rule(
    "JS231",
    "note",
    check,
    why=(
        "The server keeps each Nats-Msg-Id of the window in memory, and reads all of them when it"
        " starts. At a thousand messages a second that is 86 million ids a day."
    ),
    fix="Use a window as long as publishers retry, which is minutes.",
)
