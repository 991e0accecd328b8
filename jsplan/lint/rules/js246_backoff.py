"""JS246: an `ack_wait` that `backoff` replaces."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Consumers whose files set both, to different times."""
    for item in view.consumers():
        waits, ack_wait = (
            item.declared_fields.get("backoff") or (),
            item.declared_fields.get("ack_wait"),
        )
        if waits and ack_wait and ack_wait != waits[0]:
            text = (
                f"ack_wait {format_duration(ack_wait)} is replaced by the first wait of backoff,"
                f" {format_duration(waits[0])}"
            )
            yield Hit(item.address, text, "ack_wait")


RULE = Rule(
    "JS246",
    "warning",
    check,
    why="The server sets ack_wait to the first wait of backoff and ignores the declared value.",
    fix="Remove ack_wait, or make it the first wait of backoff.",
    in_plan=False,
)
