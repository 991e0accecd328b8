"""JS227: `*` or `>` beside other letters, which the server reads as a letter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import LintItem, View

_GLUED = re.compile(r"[^.][*>]|[*>][^.]")


def check(view: View) -> Iterator[Hit]:
    """Subjects of streams, filters of consumers, filters of mirrors and sources."""
    for item in (*view.streams(), *view.consumers()):
        for name, subject in _subjects(item):
            if _GLUED.search(subject):
                part = next(
                    part
                    for part in subject.split(".")
                    if len(part) > 1 and ("*" in part or ">" in part)
                )
                yield Hit(
                    item.address,
                    f'"{subject}": in "{part}" there is no wildcard, only the letter',
                    name,
                )


def _subjects(item: LintItem) -> Iterator[tuple[str, str]]:
    declared = item.declared_fields
    yield from (("subjects", subject) for subject in declared.get("subjects") or ())
    yield from (("filter_subjects", subject) for subject in declared.get("filter_subjects") or ())
    if declared.get("filter_subject"):
        yield "filter_subject", declared["filter_subject"]
    origins: Iterable[tuple[str, dict[str, str]]] = [
        ("sources", source) for source in declared.get("sources") or ()
    ]
    for name, origin in [
        *origins,
        *([("mirror", declared["mirror"])] if declared.get("mirror") else []),
    ]:
        if origin.get("filter_subject"):
            yield name, origin["filter_subject"]


RULE = Rule(
    "JS227",
    "warning",
    check,
    why=(
        "A wildcard is a whole part of a subject: orders.* or orders.>. The server accepts"
        " orders* as the name of one subject that ends with a star, and stores nothing that is"
        " published to orders1."
    ),
    fix="Put a dot before the wildcard, or after it.",
)
