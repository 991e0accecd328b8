"""JS212: a mirror of a stream that loses its sequences with a restart."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Mirrors of streams that one server holds in memory."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()) if item.config.get("mirror") else ():
            origin = view.all_streams.get(edge.origin)
            if (
                origin is not None
                and origin.config.get("storage") == "memory"
                and origin.replicas == 1
            ):
                yield Hit(
                    item.address,
                    f"{origin.address} is in the memory of one server;"
                    " after a restart of it, this mirror stops",
                    "mirror",
                )


RULE = Rule(
    "JS212",
    "warning",
    check,
    why=(
        "When its server restarts, a stream in memory is lost: on a single server the stream"
        " itself, in a cluster its messages. The recreated stream counts from 1 again, and its"
        " mirror waits for the sequence after its own last one. The mirror copies nothing until"
        " the origin reaches that sequence, without an error and with lag 0."
    ),
    fix=(
        "Keep the origin on disk or with several replicas, or use a source instead of the mirror:"
        " a source detects the restart."
    ),
)
