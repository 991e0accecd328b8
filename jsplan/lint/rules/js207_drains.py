"""JS207: a copy that takes away what it copies."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View


def check(view: View) -> Iterator[Hit]:
    """Mirrors and sources of a stream whose messages end with their delivery."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()):
            origin = view.all_streams.get(edge.origin)
            if origin is None or origin.retention == "limits":
                continue
            what = (
                "a work queue: messages that were copied are deleted there"
                if origin.retention == "workqueue"
                else (
                    "kept by interest: messages that this copy and every consumer have read are deleted there"
                )
            )
            yield Hit(
                item.address,
                f"{origin.address} is {what}",
                "mirror" if edge.kind == "mirror" else "sources",
                also=(origin.address,),
            )


RULE = Rule(
    "JS207", "warning", check,
    why="On every server a mirror or source of a stream with workqueue or interest retention is one of its consumers: the "
        "origin removes what it has handed over. Workers of the queue and the copy take messages from each other; up to 2.12 a "
        "second consumer without a filter is even refused (10099).",
    fix="Copy a stream with limits retention: put the queue behind it as its copy. If the copy is meant to take the work, say "
        "so.",
    in_plan=False,
)  # fmt: skip
