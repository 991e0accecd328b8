"""JS208: an existing source that gets another filter or transform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.resources.nested import source_header


def check(view: View) -> Iterator[Hit]:
    """Sources that are live with another filter or transform, and not with this one."""
    for item in view.streams():
        live = view.live.get(item.address)
        theirs = live.compact.get("sources", ()) if live is not None else ()
        if not theirs:
            continue
        there = {source_header(source) for source in theirs}
        for source in item.config.get("sources", ()):
            if source_header(source) not in there and _name(source) in {
                _name(other) for other in theirs
            }:
                text = f"the source {source['name']} gets another filter or transform: all of it is copied once more"
                yield Hit(item.address, text, "sources")


def _name(source: Mapping[str, Any]) -> str:
    return source_header({name: source[name] for name in ("name", "external") if name in source})[0]


RULE = Rule(
    "JS208", "warning", check,
    why="The server finds where to go on with a source by its origin, filter and destination, which it writes into each copied "
        "message. With another filter or transform nothing is found, and it begins with the first message of the origin: what "
        "passed the old filter and passes the new one is stored twice. `jsplan plan` counts it (DUPLICATES_MESSAGES).",
    fix="Give the new source an opt_start_seq or opt_start_time behind what is copied already, or leave the old one and add "
        "another.",
    in_plan=False, needs_live=True,
)  # fmt: skip
