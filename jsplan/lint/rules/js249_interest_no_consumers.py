"""JS249: a stream with interest retention and without consumers."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams with interest retention and subjects, and no declared consumer or downstream."""
    copied = {edge.origin for edge in view.topology.edges}
    for item in view.streams():
        waited_for = view.consumers_by_stream.get(item.address) or item.address in copied
        if item.retention == "interest" and item.config.get("subjects") and not waited_for:
            yield Hit(
                item.address,
                "no consumer of it is declared:"
                " messages published before there is one are acknowledged and not kept",
                "retention",
            )


RULE = Rule(
    "JS249",
    "note",
    check,
    why=(
        "With interest retention the server keeps the messages that a consumer waits for. Without"
        " a consumer every publish is acknowledged and removed immediately. If applications"
        " create the consumers, that happens until the first of them starts."
    ),
    fix="Declare the consumers with the stream, or use retention: limits.",
)
