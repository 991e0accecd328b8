"""JS228: a stream that catches `_INBOX.>`."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps


def check(view: View) -> Iterator[Hit]:
    """Streams whose subjects overlap with where clients are answered."""
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
    "JS228", "warning", check,
    why="Clients ask with a subject below _INBOX for the answer. A stream that stores it holds every answer of the account, "
        "those of JetStream itself included, with what is in them.",
    fix="Name the subjects that are meant.",
)  # fmt: skip
