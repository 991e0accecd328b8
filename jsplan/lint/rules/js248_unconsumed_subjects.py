"""JS248: subjects of a work queue that none of its consumers takes."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import is_covered


def check(view: View) -> Iterator[Hit]:
    """Work queues some of whose consumers are declared, and leave subjects over."""
    for item in view.streams():
        consumers = (
            view.consumers_by_stream.get(item.address, []) if item.retention == "workqueue" else []
        )
        if not consumers or not all(consumer.filters for consumer in consumers):
            continue
        taken = [subject for consumer in consumers for subject in consumer.filters]
        left = [
            subject
            for subject in view.stored_subjects(item.address) or ()
            if not is_covered(subject, taken)
        ]
        if left:
            names = ", ".join(consumer.address.consumer for consumer in consumers)
            yield Hit(
                item.address,
                f'"{left[0]}" is taken by no consumer ({names}) as a whole: what they leave stays in the queue',
                "subjects",
            )


RULE = Rule(
    "JS248", "note", check,
    why="A work queue removes a message when it is acknowledged. What no consumer asks for is never acknowledged, and fills the "
        "queue until a limit removes it, or refuses new work.",
    fix="Add a consumer for the rest, narrow the subjects of the stream, or add a max_age.",
)  # fmt: skip
