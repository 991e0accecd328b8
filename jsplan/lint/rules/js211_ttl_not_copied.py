"""JS211: a mirror or source that ignores the TTLs of the messages that it copies."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams without `allow_msg_ttl` whose origins have it."""
    for item in view.streams():
        if item.config.get("allow_msg_ttl"):
            continue
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is not None and origin.config.get("allow_msg_ttl"):
                text = (
                    f"messages of {origin.address} have TTLs of their own,"
                    " which this copy does not apply: expired messages stay here"
                )
                yield Hit(item.address, text, "mirror" if edge.kind == "mirror" else "sources")
                break


RULE = Rule(
    "JS211",
    "warning",
    check,
    why=(
        "A message with a Nats-TTL expires only in streams that allow it. A mirror or source"
        " without allow_msg_ttl copies such messages and keeps them after the origin has removed"
        " them."
    ),
    fix=(
        "Add allow_msg_ttl: true to this stream, or ignore this with the reason that it is to"
        " keep them."
    ),
)
