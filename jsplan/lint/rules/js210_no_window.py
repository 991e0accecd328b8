"""JS210: a stream with publishes and sources, and without a duplicate window."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams with subjects and sources whose files do not set the window."""
    for item in view.streams():
        window = "duplicate_window" in item.declared_fields or item.config.get("duplicate_window")
        if item.config.get("sources") and item.config.get("subjects") and not window:
            text = (
                "publishers to it are not protected by Nats-Msg-Id:"
                " with sources there is no duplicate_window"
            )
            yield Hit(item.address, text, "sources")


RULE = Rule(
    "JS210",
    "note",
    check,
    why=(
        "Up to 2.12 every stream had a duplicate window of two minutes by default. Since 2.14 a"
        " stream with sources has none, so a message that is published again with the same"
        " Nats-Msg-Id is stored again. On an upgraded server the window disappears with the next"
        " update."
    ),
    fix=(
        "Write duplicate_window: 2m (with several sources see JS209), or 0s if publishers do not"
        " rely on it."
    ),
)
