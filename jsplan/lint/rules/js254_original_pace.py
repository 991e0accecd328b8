"""JS254: a worker that gets messages at the pace of their publishing."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers that acknowledge, with replay_policy original."""
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
    "JS254",
    "note",
    check,
    why=(
        "replay_policy: original keeps the pauses between messages. It is made for simulations: a"
        " worker that was offline never catches up. It cannot be changed later."
    ),
    fix="Remove replay_policy, unless the pauses are intended.",
)
