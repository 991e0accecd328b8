"""JS213: a mirror or source whose filter matches no subject of its origin."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import intersect
from jsplan.topology.replication_graph import subject_mappings


def check(view: View) -> Iterator[Hit]:
    """Each filter of each origin with known subjects."""
    for item in view.streams():
        for edge in view.origins.get(item.address, ()):
            stored = view.stored_subjects(edge.origin)
            for src, _ in subject_mappings(edge.config) if stored else ():
                if not any(intersect(subject, src) is not None for subject in stored or ()):
                    yield Hit(
                        item.address,
                        f'"{src}" matches no subject of {edge.origin},'
                        f" which stores {', '.join(stored or ())}",
                        "mirror" if edge.kind == "mirror" else "sources",
                    )


RULE = Rule(
    "JS213",
    "warning",
    check,
    why=(
        "The server accepts any filter, and copies nothing if none of the origin's subjects"
        " matches it. Transforms of the origin count: the filter sees the subjects as the origin"
        " stores them."
    ),
    fix="Correct the filter, or the subjects of the origin.",
    in_plan=False,
)
