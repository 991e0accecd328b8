"""JS254: a worker that gets its messages at the pace at which they were published."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers that acknowledge, and replay."""
    for item in view.consumers():
        if (
            item.config.get("replay_policy") == "original"
            and item.config.get("ack_policy", "none") != "none"
        ):
            yield Hit(
                item.address,
                "replay_policy original: a week of history takes a week to replay",
                "replay_policy",
            )


RULE = Rule(
    "JS254", "note", check,
    why="replay_policy: original keeps the pauses between messages. It is made for simulations; a worker that was away never "
        "catches up. It cannot be changed later.",
    fix="Leave replay_policy out, unless the pauses are the point.",
)  # fmt: skip
