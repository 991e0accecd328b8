"""JS242: several workers, and one message out at a time."""

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
        alone = item.config.get("priority_policy") == "pinned_client"  # one worker is all it wants
        if (
            group
            and not alone
            and item.config.get("ack_policy", "none") != "none"
            and item.config.get("max_ack_pending") == 1
        ):
            yield Hit(
                item.address,
                f"max_ack_pending is 1, so the workers of {group} take turns: one works, all others wait",
                "max_ack_pending",
            )


RULE = Rule(
    "JS242", "warning", check,
    why="max_ack_pending counts the messages that are out to all workers of a consumer together. With 1 the next message is "
        "delivered when the last one is acknowledged, whoever has it: more workers do not help.",
    fix="Raise max_ack_pending to what all workers may hold together; for strict order keep one worker, without a group.",
)  # fmt: skip
