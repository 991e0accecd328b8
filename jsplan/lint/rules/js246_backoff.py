"""JS246: an `ack_wait` that `backoff` replaces."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Consumers whose files say both, and not the same."""
    for item in view.consumers():
        waits, said = (
            item.declared_fields.get("backoff") or (),
            item.declared_fields.get("ack_wait"),
        )
        if waits and said and said != waits[0]:
            text = f"ack_wait {format_duration(said)} is replaced by the first wait of backoff, {format_duration(waits[0])}"
            yield Hit(item.address, text, "ack_wait")


RULE = Rule(
    "JS246", "warning", check,
    why="The server sets ack_wait to the first wait of backoff, whatever was asked for.",
    fix="Remove ack_wait, or make it the first wait of backoff.",
    in_plan=False,
)  # fmt: skip
