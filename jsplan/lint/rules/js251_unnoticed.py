"""JS251: a push consumer without acknowledgements, heartbeat and flow control."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Push consumers whose subscriber cannot know what it missed."""
    for item in view.consumers():
        config = item.config
        if (
            config.get("deliver_subject")
            and config.get("ack_policy", "none") == "none"
            and not config.get("idle_heartbeat")
        ):
            yield Hit(
                item.address,
                "its subscriber does not notice what it misses: no acknowledgements, no idle_heartbeat",
                "deliver_subject",
            )


RULE = Rule(
    "JS251", "note", check,
    why="A push consumer sends as fast as it can. What a slow subscriber or a broken link drops is not sent again, and without "
        "heartbeats nobody sees that the last one is missing, or that the consumer is gone.",
    fix="Add idle_heartbeat and flow_control, or let clients pull.",
)  # fmt: skip
