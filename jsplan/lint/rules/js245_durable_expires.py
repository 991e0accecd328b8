"""JS245: a durable consumer with a threshold, its own or its stream's."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Durable consumers that are deleted without a client."""
    for item in view.consumers():
        threshold = item.config.get("inactive_threshold", 0)
        if threshold and item.config.get("durable_name"):
            own = bool(item.declared_fields.get("inactive_threshold"))
            whose = "" if own else " (consumer_limits of its stream)"
            age = format_duration(threshold)
            text = f"is durable, and deleted after {age} without a client{whose}"
            yield Hit(item.address, text, "inactive_threshold" if own else "")


RULE = Rule(
    "JS245",
    "warning",
    check,
    why=(
        "A threshold applies to durable consumers too: after that time without a client the"
        " server deletes the consumer with its position, and the next plan recreates it from its"
        " deliver_policy. The consumer_limits of a stream set the threshold of every consumer"
        " that has none."
    ),
    fix=(
        "Remove inactive_threshold (from the stream's consumer_limits too), or declare"
        " durable_name: null if the consumer is meant to expire."
    ),
)
