"""JS212: a mirror that goes on from where its origin no longer is."""

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
                    f"{origin.address} is in the memory of one server; when that restarts, this mirror stands still",
                    "mirror",
                )


RULE = Rule(
    "JS212", "warning", check,
    why="When its server restarts, a stream in memory is gone: on a single server the stream itself, in a cluster all it held. Made "
        "anew it counts from 1 again, and its mirror waits for the sequence after its own last one: it copies nothing until the "
        "origin comes that far, without an error and with lag 0.",
    fix="Keep the origin on disk, or in several copies; or use a source instead of the mirror, which notices.",
)  # fmt: skip
