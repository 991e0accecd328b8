"""JS233: a bucket whose keys expire without a message."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.resources import STREAM
from jsplan.units import format_duration

_MARKERS = STREAM.by_name["subject_delete_marker_ttl"]


def check(view: View) -> Iterator[Hit]:
    """Buckets with a `ttl` and no marker, in domains that support markers."""
    for item in view.streams():
        age = item.config.get("max_age") or 0
        own = item.address.kind == "kv" and not item.config.get("mirror")
        if (
            own
            and age
            and not item.config.get(_MARKERS.name)
            and view.level(item.address.domain) >= _MARKERS.level
        ):
            yield Hit(
                item.address,
                f"when a key expires after {format_duration(age)}, watchers are not notified",
                "max_age",
            )


RULE = Rule(
    "JS233",
    "note",
    check,
    why=(
        "The server removes a key after its ttl without a message: clients that watch the bucket"
        " continue with the old value. With limit_marker_ttl (since 2.11) the server leaves a"
        " marker, which watchers receive as a deletion. The marker occupies the key while it"
        " lives: a lock that is taken by creating its key waits for that too."
    ),
    fix="Add limit_marker_ttl if clients watch the bucket.",
)
