"""JS243: batches larger than the limit of unacknowledged messages."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Pull consumers that allow larger requests than they can answer."""
    for item in view.consumers():
        batch, pending = item.config.get("max_batch", 0), item.config.get("max_ack_pending", 0)
        if item.config.get("ack_policy", "none") != "none" and 0 < pending < batch:
            yield Hit(
                item.address,
                f"max_batch is {batch}, and only {pending} may be unacknowledged (max_ack_pending)",
                "max_batch",
            )


RULE = Rule(
    "JS243",
    "warning",
    check,
    why=(
        "A client that acknowledges a batch as a whole waits for messages that are not sent"
        " before it acknowledges some. Each request ends by its timeout."
    ),
    fix="Make max_ack_pending at least as large as max_batch.",
)
