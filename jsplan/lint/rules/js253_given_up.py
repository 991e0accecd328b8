"""JS253: messages that reached max_deliver and stay in the queue."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import limit_of
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Consumers of queues with max_deliver, if no limit removes messages."""
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
                f"after {most} deliveries a message is not delivered again, and stays in the queue",
                "max_deliver",
            )


RULE = Rule(
    "JS253",
    "note",
    check,
    why=(
        "max_deliver ends the attempts, not the message: it stays in the work queue, counts for"
        " its limits, and for max_ack_pending of the consumer. The server reports it once, with"
        " the advisory MAX_DELIVERIES."
    ),
    fix=(
        "Add a max_age to the stream, or subscribe to"
        " $JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES.> and delete such messages."
    ),
)
