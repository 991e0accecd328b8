"""JS208: an existing source with a new filter or transform."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.resources.source_header import source_name


def check(view: View) -> Iterator[Hit]:
    """Sources whose filter or transform differs from live."""
    for item in view.streams():
        live = view.live.get(item.address)
        theirs = live.compact.get("sources", ()) if live is not None else ()
        if not theirs:
            continue
        live_headers = {source_name(source) for source in theirs}
        for source in item.config.get("sources", ()):
            if source_name(source) not in live_headers and _name(source) in {
                _name(other) for other in theirs
            }:
                text = (
                    f"the source {source['name']} gets another filter or transform:"
                    " all of it is copied again"
                )
                yield Hit(item.address, text, "sources")


def _name(source: Mapping[str, Any]) -> str:
    return source_name(
        {name: source[name] for name in ("name", "external") if name in source}
    ).stream


RULE = Rule(
    "JS208",
    "warning",
    check,
    why=(
        "The server finds where to continue with a source by its origin, filter and destination,"
        " which it writes into each copied message. With another filter or transform it finds"
        " nothing, and begins with the first message of the origin. Messages that pass both"
        " filters are stored twice. `jsplan plan` counts them (DUPLICATES_MESSAGES)."
    ),
    fix=(
        "Give the new source an opt_start_seq or opt_start_time after the copied messages, or"
        " keep the old source and add another."
    ),
    in_plan=False,
    needs_live=True,
)
