"""JS245: a durable consumer with a threshold, its own or its stream's."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Durable consumers that end when nobody uses them."""
    for item in view.consumers():
        threshold = item.config.get("inactive_threshold", 0)
        if threshold and item.config.get("durable_name"):
            said = bool(item.declared_fields.get("inactive_threshold"))
            whose = "" if said else " (consumer_limits of its stream)"
            text = f"is durable, and deleted after {format_duration(threshold)} without a client{whose}"
            yield Hit(item.address, text, "inactive_threshold" if said else "")


RULE = Rule(
    "JS245", "warning", check,
    why="A threshold ends durable consumers too: after that long without a client the server deletes it, with its position, and "
        "the next plan makes it anew from its deliver_policy. The consumer_limits of a stream give their threshold to every "
        "consumer that has none.",
    fix="Remove inactive_threshold (from the stream's consumer_limits too), or declare durable_name: null if it is meant to "
        "end.",
)  # fmt: skip
