"""JS253: work that was tried often enough, and stays."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import limit_of
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers of queues that give up, where nothing else ends a message."""
    for item in view.consumers():
        most, stream = item.config.get("max_deliver", -1), view.stream_of(item)
        if (
            most > 0
            and stream is not None
            and stream.retention == "workqueue"
            and not limit_of(stream, "max_age")
        ):
            yield Hit(
                item.address,
                f"after {most} deliveries a message is delivered no more, and stays in the queue for ever",
                "max_deliver",
            )


RULE = Rule(
    "JS253", "note", check,
    why="max_deliver ends the attempts, not the message: it stays in the work queue, counts for its limits, and for "
        "max_ack_pending of the consumer. The server tells of it once, by the advisory MAX_DELIVERIES.",
    fix="Add a max_age to the stream, or listen to $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.> and delete such messages.",
)  # fmt: skip
