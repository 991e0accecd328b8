"""JS216: a replicated stream that may copy messages again after an election."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.resources.server_features import SNAPSHOT_SOURCES_LEVEL
from jsplan.units import SECOND, format_duration

#: A limit by which the last message of an origin is often removed.
_SHORT_AGE: Final = 24 * 3600 * SECOND


def check(view: View) -> Iterator[Hit]:
    """Streams with replicas and sources whose messages are removed soon."""
    for item in view.streams():
        age = int(item.config.get("max_age") or 0)
        removed = (
            f"retention {item.retention}"
            if item.retention != "limits"
            else f"max_age {format_duration(age)}"
            if 0 < age <= _SHORT_AGE
            else ""
        )
        if (
            removed
            and item.replicas > 1
            and item.config.get("sources")
            and view.level(item.address.domain) >= SNAPSHOT_SOURCES_LEVEL
        ):
            yield Hit(
                item.address,
                f"has sources, {item.replicas} replicas and {removed}: a new leader may copy"
                " messages again",
                "sources",
            )


RULE = Rule(
    "JS216",
    "note",
    check,
    why=(
        "A replica that was offline and caught up knows the position of a source by the messages of"
        " the stream. Where these are removed already, it begins earlier when it becomes the"
        " leader, and copies what was copied before. nats-server 2.15 stores the positions with the"
        " feature flag js_snapshot_sources, which is off by default. jsplan cannot see the flag."
    ),
    fix=(
        "Set `feature_flags { js_snapshot_sources: true }` in the configuration of each server of"
        " the cluster, restart them one by one, and ignore this with that reason."
    ),
)
