"""JS211: a copy that does not honour the life times of the messages it copies."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Copies without `allow_msg_ttl` of origins that have it."""
    for item in view.streams():
        if item.config.get("allow_msg_ttl"):
            continue
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is not None and origin.config.get("allow_msg_ttl"):
                text = f"messages of {origin.address} have TTLs of their own, which this copy does not apply: expired messages stay here"
                yield Hit(item.address, text, "mirror" if edge.kind == "mirror" else "sources")
                break


RULE = Rule(
    "JS211", "warning", check,
    why="A message with a Nats-TTL is removed at its time only in streams that allow it. A mirror or source without "
        "allow_msg_ttl copies such messages and keeps them: it holds what its origin has not held for long.",
    fix="Add allow_msg_ttl: true to the copy, or ignore this with the reason that it shall keep them.",
)  # fmt: skip
