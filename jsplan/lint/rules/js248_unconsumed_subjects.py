"""JS248: subjects of a work queue that none of its consumers takes."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import is_covered


def check(view: View) -> Iterator[Hit]:
    """Work queues with declared consumers that do not cover all subjects."""
    for item in view.streams():
        consumers = (
            view.consumers_by_stream.get(item.address, []) if item.retention == "workqueue" else []
        )
        if not consumers or not all(consumer.filters for consumer in consumers):
            continue
        taken = [subject for consumer in consumers for subject in consumer.filters]
        uncovered = [
            subject
            for subject in view.stored_subjects(item.address) or ()
            if not is_covered(subject, taken)
        ]
        if uncovered:
            names = ", ".join(consumer.address.consumer for consumer in consumers)
            yield Hit(
                item.address,
                f'"{uncovered[0]}" is not fully covered by the consumers ({names}):'
                " the rest stays in the queue",
                "subjects",
            )


RULE = Rule(
    "JS248",
    "note",
    check,
    why=(
        "A work queue removes a message when it is acknowledged. A message that no consumer takes"
        " is never acknowledged. Such messages fill the queue until a limit removes them, or"
        " refuses new work."
    ),
    fix="Add a consumer for the rest, narrow the subjects of the stream, or add a max_age.",
)
