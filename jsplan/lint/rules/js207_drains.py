"""JS207: a mirror or source that drains its origin."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Mirrors and sources of a stream with workqueue or interest retention."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is None or origin.retention == "limits":
                continue
            what = (
                "a work queue: copied messages are deleted there"
                if origin.retention == "workqueue"
                else (
                    "kept by interest: messages that this stream and every consumer have read"
                    " are deleted there"
                )
            )
            yield Hit(
                item.address,
                f"{origin.address} is {what}",
                "mirror" if edge.kind == "mirror" else "sources",
                also=(origin.address,),
            )


RULE = Rule(
    "JS207",
    "warning",
    check,
    why=(
        "On every server a mirror or source of a stream with workqueue or interest retention is"
        " one of its consumers: the origin removes each message after it was copied. Workers of"
        " the queue and the copying stream take messages from each other. Up to 2.12 a second"
        " consumer without a filter is even refused (10099)."
    ),
    fix=(
        "Copy a stream with limits retention: let the queue source that stream. If the copying"
        " stream is meant to take the work, ignore this with that reason."
    ),
    in_plan=False,
)
