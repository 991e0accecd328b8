"""JS229: `no_ack: true` in a stream that could acknowledge."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps

#: Subjects that a stream may only store without acknowledging (10052).
_NEEDED = ("$JS.>", "$JSC.>", "$NRG.>", "$SYS.>")


def check(view: View) -> Iterator[Hit]:
    """Streams that do not acknowledge although their subjects allow it."""
    for item in view.streams():
        subjects = item.config.get("subjects", ())
        if item.config.get("no_ack") and not any(
            overlaps(subject, needed) for subject in subjects for needed in _NEEDED
        ):
            yield Hit(
                item.address,
                "publishers get no answer, whether a message was stored or not",
                "no_ack",
            )


RULE = Rule(
    "JS229",
    "note",
    check,
    why=(
        "Without acknowledgements a publisher cannot tell a stored message from a lost one: when"
        " a limit refuses it, when the stream has no leader, or when the stream was deleted."
    ),
    fix=(
        "Remove no_ack. Keep it if a subject needs it ($JS.>, >), or if clients that publish with"
        " a reply subject of their own must not be answered."
    ),
)
