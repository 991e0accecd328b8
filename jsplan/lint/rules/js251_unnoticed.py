"""JS251: a push consumer without acknowledgements, heartbeat and flow control."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Push consumers whose subscriber cannot notice a lost message."""
    for item in view.consumers():
        config = item.config
        if (
            config.get("deliver_subject")
            and config.get("ack_policy", "none") == "none"
            and not config.get("idle_heartbeat")
        ):
            yield Hit(
                item.address,
                "its subscriber cannot detect lost messages:"
                " no acknowledgements, no idle_heartbeat",
                "deliver_subject",
            )


RULE = Rule(
    "JS251",
    "note",
    check,
    why=(
        "A push consumer sends as fast as it can. Messages that a slow subscriber or a broken"
        " link drops are not sent again. Without heartbeats no client notices that the last"
        " message is missing, or that the consumer is gone."
    ),
    fix="Add idle_heartbeat and flow_control, or let clients pull.",
)
