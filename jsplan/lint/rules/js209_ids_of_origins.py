"""JS209: a duplicate window in a stream with several origins."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Streams of two or more sources with a window in the files."""
    for item in view.streams():
        origins = len(item.config.get("sources", ()))
        if origins > 1 and item.declared_fields.get("duplicate_window"):
            window = format_duration(item.declared_fields["duplicate_window"])
            yield Hit(
                item.address,
                f"of messages with one Nats-Msg-Id from {origins} sources only the first is stored,"
                f" for {window}",
                "duplicate_window",
            )


RULE = Rule(
    "JS209",
    "warning",
    check,
    why=(
        "A stream with a duplicate window checks the Nats-Msg-Id of copied messages too. If each"
        " origin numbers its own messages, the stream drops the second of two equal ids without"
        " an error."
    ),
    fix=(
        "Remove duplicate_window (since 2.14 a stream with sources then has none), or make the"
        " ids unique across the origins."
    ),
)
