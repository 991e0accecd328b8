"""JS233: a bucket whose keys end without a word."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.units import format_duration


def check(view: View) -> Iterator[Hit]:
    """Buckets with a `ttl` and no marker, in domains that know markers."""
    for item in view.streams():
        age = item.config.get("max_age") or 0
        own = item.address.kind == "kv" and not item.config.get("mirror")
        if (
            own
            and age
            and not item.config.get("subject_delete_marker_ttl")
            and view.level(item.address.domain) >= 1
        ):
            yield Hit(
                item.address,
                f"when a key ends after {format_duration(age)}, watchers do not hear of it",
                "max_age",
            )


RULE = Rule(
    "JS233", "note", check,
    why="A key that its ttl removes is gone without a message: clients that watch the bucket go on with the value they have. "
        "With limit_marker_ttl (since 2.11) the server leaves a marker, which watchers get as a deletion. The marker holds the "
        "key for as long as it lives: a lock that is taken by creating its key has to wait for that too.",
    fix="Add limit_marker_ttl, if somebody watches the bucket.",
)  # fmt: skip
