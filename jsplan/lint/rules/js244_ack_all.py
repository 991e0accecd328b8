"""JS244: acknowledgements that include messages of other workers."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers with a group of workers and `ack_policy: all`."""
    for item in view.consumers():
        group = item.config.get("deliver_group") or ", ".join(
            item.config.get("priority_groups", ())
        )
        if (
            group
            and item.config.get("ack_policy") == "all"
            and item.config.get("priority_policy") != "pinned_client"
        ):
            yield Hit(
                item.address,
                f"with ack_policy: all a worker of {group} acknowledges what others still work on",
                "ack_policy",
            )


RULE = Rule(
    "JS244",
    "warning",
    check,
    why=(
        "With `all`, an acknowledgement counts for every message up to that one, also for those"
        " of other workers. If a faster worker has acknowledged a later message, a worker that"
        " fails loses its own."
    ),
    fix="Write ack_policy: explicit if several workers share a consumer.",
)
