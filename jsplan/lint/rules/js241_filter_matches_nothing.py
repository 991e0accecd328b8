"""JS241: a consumer whose filter matches no subject of its stream."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps


def check(view: View) -> Iterator[Hit]:
    """Each filter, if the subjects of the stream are known."""
    for item in view.consumers():
        stream = view.stream_of(item) if item.filters else None
        stored = view.stored_subjects(stream.address) if stream is not None else None
        for wanted in item.filters if stored else ():
            if not any(overlaps(wanted, subject) for subject in stored or ()):
                assert stream is not None
                field = "filter_subject" if item.config.get("filter_subject") else "filter_subjects"
                yield Hit(
                    item.address,
                    f'"{wanted}" matches no subject of {stream.address},'
                    f" which stores {_format_subjects(stored or [])}",
                    field,
                )


def _format_subjects(stored: list[str]) -> str:
    return ", ".join(stored[:5]) + (f" and {len(stored) - 5} more" if len(stored) > 5 else "")


RULE = Rule(
    "JS241",
    "warning",
    check,
    why=(
        "The server accepts any filter, and delivers nothing if no message matches it. A stream"
        " with a subject_transform stores the transformed subjects, and its consumers see those."
    ),
    fix="Correct the filter, or the subjects of the stream.",
)
