"""JS225: `discard: new` in a stream that is never full."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import limit_of
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Streams whose files set it; buckets always have it."""
    for item in view.streams():
        limited = limit_of(item, "max_msgs") or limit_of(item, "max_bytes")
        per_subject = item.config.get("discard_new_per_subject") and limit_of(
            item, "max_msgs_per_subject"
        )
        if (
            item.declared_fields.get("discard") == "new"
            and item.address.kind == "stream"
            and not (limited or per_subject)
        ):
            yield Hit(
                item.address,
                "discard: new has no effect: there is no max_msgs or max_bytes to be reached",
                "discard",
            )


RULE = Rule(
    "JS225",
    "note",
    check,
    why=(
        "`discard` applies at max_msgs and max_bytes. max_age removes messages in any case, and"
        " max_msgs_per_subject removes old ones unless discard_new_per_subject is set."
    ),
    fix="Add the limit at which publishes are to be refused, or remove discard.",
)
