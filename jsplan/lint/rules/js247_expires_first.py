"""JS247: a stream's max_age that is shorter than a consumer's ack_wait."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Consumers that redeliver later than their stream keeps messages."""
    for item in view.consumers():
        stream = view.stream_of(item)
        age, wait = (
            (stream.config.get("max_age", 0) if stream else 0),
            item.config.get("ack_wait", 0),
        )
        if item.config.get("ack_policy", "none") != "none" and 0 < age <= wait:
            text = (
                f"ack_wait ({format_duration(wait)}) is not shorter than max_age"
                f" ({format_duration(age)}): no message is ever redelivered"
            )
            yield Hit(item.address, text, "ack_wait")


RULE = Rule(
    "JS247",
    "warning",
    check,
    why=(
        "A message that was not acknowledged is delivered again after ack_wait, if it still"
        " exists. If max_age of the stream removes it earlier, a worker that fails loses it."
    ),
    fix="Make ack_wait shorter than max_age of the stream.",
)
