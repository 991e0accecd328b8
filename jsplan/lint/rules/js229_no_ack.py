"""JS229: `no_ack: true` in a stream that could acknowledge."""

from __future__ import annotations

from collections.abc import Iterator

from jsplan.lint.rule import Hit, Rule
from jsplan.lint.view import View
from jsplan.subjects import overlaps

#: What a stream may only store without acknowledging it (10052).
_NEEDED = ("$JS.>", "$JSC.>", "$NRG.>", "$SYS.>")


def check(view: View) -> Iterator[Hit]:
    """Streams that do not acknowledge although their subjects would let them."""
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
    "JS229", "note", check,
    why="Without acknowledgements a publisher cannot tell a stored message from a lost one: not when a limit refuses it, not "
        "when the stream has no leader, not when it was deleted.",
    fix="Remove no_ack, unless a subject needs it ($JS.>, >) or clients that publish with a reply subject of their own must not "
        "be answered.",
)  # fmt: skip
