"""JS224: a work queue with a size limit that removes the oldest work."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import limit_of
from jsplan.lint.view import View

_SIZES = ("max_msgs", "max_bytes", "max_msgs_per_subject")


def check(view: View) -> Iterator[Hit]:
    """Work queues that discard old messages at a size."""
    for item in view.streams():
        full = [name for name in _SIZES if limit_of(item, name)]
        if item.retention == "workqueue" and full and item.config.get("discard", "old") == "old":
            yield Hit(
                item.address,
                f"when {' or '.join(full)} is reached, the oldest work is removed unprocessed",
                full[0],
            )


RULE = Rule(
    "JS224",
    "warning",
    check,
    why=(
        "By default a full stream removes its oldest messages. In a work queue these are the"
        " messages that have waited longest, and the server reports nothing."
    ),
    fix="Write discard: new, so that publishers get an error when the queue is full.",
)
