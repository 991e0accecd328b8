"""JS242: several workers, and one unacknowledged message at a time."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers with a group of workers and `max_ack_pending: 1`."""
    for item in view.consumers():
        group = item.config.get("deliver_group") or ", ".join(
            item.config.get("priority_groups", ())
        )
        alone = item.config.get("priority_policy") == "pinned_client"  # one worker is intended
        if (
            group
            and not alone
            and item.config.get("ack_policy", "none") != "none"
            and item.config.get("max_ack_pending") == 1
        ):
            yield Hit(
                item.address,
                f"max_ack_pending is 1, so only one worker of {group} works at a time",
                "max_ack_pending",
            )


RULE = Rule(
    "JS242",
    "warning",
    check,
    why=(
        "max_ack_pending counts the unacknowledged messages of all workers of a consumer"
        " together. With 1 the next message is delivered when the last one is acknowledged, by"
        " any worker: more workers do not help."
    ),
    fix=(
        "Raise max_ack_pending to the number that all workers may have together. For strict order"
        " keep one worker, without a group."
    ),
)
