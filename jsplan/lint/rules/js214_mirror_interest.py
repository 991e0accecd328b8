"""JS214: a mirror that keeps messages only for its own consumers."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams with an origin and interest retention, for which no consumer is declared."""
    for item in view.streams():
        origins = item.config.get("mirror") or item.config.get("sources")
        if (
            origins
            and item.retention == "interest"
            and not view.consumers_by_stream.get(item.address)
        ):
            yield Hit(
                item.address,
                "stores no message of its origin as long as it has no consumer",
                "retention",
            )


RULE = Rule(
    "JS214",
    "warning",
    check,
    why=(
        "With interest retention a stream does not keep a message that none of its consumers"
        " waits for, copied or not. It skips the message and never copies it later. Consumers of"
        " the origin do not count."
    ),
    fix="Declare the consumers with the stream, or use retention: limits.",
)
