"""JS252: a consumer with fewer replicas than its stream, or in memory on a stream on disk."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Durable consumers that acknowledge, and whose position is less safe than the messages."""
    for item in view.consumers():
        stream = view.stream_of(item)
        config = item.config
        if (
            stream is None
            or not config.get("durable_name")
            or config.get("ack_policy", "none") == "none"
        ):
            continue
        replicas = config.get("num_replicas", 0)
        if 0 < replicas < stream.replicas:
            yield Hit(
                item.address,
                f"its position has {replicas} of the {stream.replicas} replicas of its stream",
                "num_replicas",
            )
        elif config.get("mem_storage") and stream.config.get("storage") != "memory":
            yield Hit(
                item.address, "its position is in memory, and its stream on disk", "mem_storage"
            )


RULE = Rule(
    "JS252",
    "note",
    check,
    why=(
        "A consumer that loses its position starts again where its deliver_policy says. Usually"
        " that is the first message, and everything is delivered again."
    ),
    fix="Remove num_replicas and mem_storage: the consumer is then as safe as its stream.",
)
