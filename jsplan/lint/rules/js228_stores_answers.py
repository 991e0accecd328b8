"""JS228: a stream that stores `_INBOX.>`."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps


def check(view: View) -> Iterator[Hit]:
    """Streams whose subjects overlap with the subjects of replies to clients."""
    for item in view.streams():
        caught = next(
            (
                subject
                for subject in item.config.get("subjects", ())
                if overlaps(subject, "_INBOX.>")
            ),
            None,
        )
        if caught is not None:
            yield Hit(
                item.address,
                f'"{caught}" catches _INBOX.>, where all requests are answered',
                "subjects",
            )


RULE = Rule(
    "JS228",
    "warning",
    check,
    why=(
        "Clients receive replies on subjects below _INBOX. A stream that stores them has every"
        " reply of the account with its content, including those of JetStream itself."
    ),
    fix="Name the subjects that the stream needs.",
)
