"""JS220: a stream on disk that grows until the disk is full."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.rules.js205_mirror_keeps_less import LIMITS, limit_of
from jsplan.lint.view import LintItem, View


def is_unlimited(item: LintItem) -> bool:
    """Check whether nothing removes messages.

    Consumers do in a queue and clients in a bucket; JS206 is for mirrors.
    """
    return (
        item.address.kind == "stream"
        and item.retention == "limits"
        and not any(limit_of(item, name) for name in LIMITS)
    )


def check(view: View) -> Iterator[Hit]:
    """Streams on disk, without mirrors of a known origin."""
    for item in view.streams():
        if (
            is_unlimited(item)
            and item.config.get("storage") != "memory"
            and not item.config.get("sealed")
        ):
            if item.config.get("mirror") and view.origins.get(item.address):
                continue
            yield Hit(
                item.address,
                "has no max_age, max_bytes, max_msgs or max_msgs_per_subject:"
                " it grows until the disk is full",
            )


RULE = Rule(
    "JS220",
    "note",
    check,
    why=(
        "When the storage of a JetStream account or its disk is full, the server refuses"
        " publishes to all its streams, not only to the one that filled it."
    ),
    fix="Limit how long messages are kept (max_age) or how much space they take (max_bytes).",
)
