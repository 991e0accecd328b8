"""JS209: a duplicate window in a stream that collects several origins."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Streams of two or more sources with a window that the files ask for."""
    for item in view.streams():
        origins = len(item.config.get("sources", ()))
        if origins > 1 and item.declared_fields.get("duplicate_window"):
            window = format_duration(item.declared_fields["duplicate_window"])
            yield Hit(
                item.address,
                f"of messages with one Nats-Msg-Id from {origins} sources the first is kept, for {window}",
                "duplicate_window",
            )


RULE = Rule(
    "JS209", "warning", check,
    why="A stream with a duplicate window looks at the Nats-Msg-Id of copied messages too. Where each origin numbers its own "
        "messages, the second of two equal ids is taken for a repetition and silently left out of the stream that should hold "
        "all.",
    fix="Leave duplicate_window out (since 2.14 a stream with sources then has none), or make the ids unique across the "
        "origins.",
)  # fmt: skip
