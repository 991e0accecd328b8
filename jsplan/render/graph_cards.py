"""Cards of a graph: each node with its lines and its size.

Text cannot be measured here. Widths come from a table of common sans-serif letters and are a little
too wide.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import Final

from msgspec import Struct

from jsplan.documents.graph import Node

#: Sizes of text in px.
NAME, TEXT, SMALL = 13.0, 11.0, 10.0
LINE, PAD, BAR = 15.0, 10.0, 5.0
MAX_WIDTH: Final = 340.0
#: Subjects and consumers that are listed on one card.
MAX_SUBJECTS: Final = 8
_NARROW, _WIDE = "fijlrtI.,:;'|!()[]{}·-", "mwMW@%"


class Row(Struct, frozen=True):
    """One line of a card: the text as it fits, the full text, and its role."""

    text: str
    full_text: str
    role: str
    action: str = ""


class Card(Struct, frozen=True):
    """A node with its lines, in px."""

    node: Node
    rows: tuple[Row, ...]
    width: float
    height: float


@lru_cache(maxsize=8192)
def text_width(text: str, size: float, *, mono: bool = False, bold: bool = False) -> float:
    """Estimate the width of a text in px; fixed-width letters are exact."""
    total = 0.0
    for letter in text:
        if unicodedata.east_asian_width(letter) in "WF":
            total += 1.05
        elif mono:
            total += 0.61
        else:
            total += (
                0.4
                if letter in _NARROW
                else 0.95
                if letter in _WIDE
                else 0.7
                if letter.isupper()
                else 0.62
            )
    return total * size * (1.14 if bold else 1.0)


def truncate_middle(
    text: str, limit: float, size: float, *, mono: bool = False, bold: bool = False
) -> str:
    """Return the text, cut in its middle if it is wider than `limit`.

    Both ends of a subject matter.
    """
    if text_width(text, size, mono=mono, bold=bold) <= limit:
        return text
    keep = len(text)
    while keep > 2:
        keep -= 1
        shown = f"{text[: keep - keep // 2]}…{text[len(text) - keep // 2 :]}"
        if text_width(shown, size, mono=mono, bold=bold) <= limit:
            return shown
    return "…"


#: Size, fixed width and weight of each role.
STYLE: Final = {
    "name": (NAME, False, True), "subject": (TEXT, True, False), "facts": (SMALL, False, False),
    "reader": (TEXT, False, False),
    "more": (SMALL, False, False),
}  # fmt: skip


def build_card(node: Node) -> Card:
    """Return the card of a node: name, subjects, facts, consumers."""
    wanted = [("name", node.name, "")]
    wanted += [("subject", subject, "") for subject in _visible_subjects(node.subjects)]
    wanted += (
        [("more", f"and {len(node.subjects) - MAX_SUBJECTS} more subjects", "")]
        if len(node.subjects) > MAX_SUBJECTS + 1
        else []
    )
    wanted += [("facts", node.summary, "")] if node.summary else []
    readers = (
        node.consumers if len(node.consumers) <= MAX_SUBJECTS + 1 else node.consumers[:MAX_SUBJECTS]
    )
    wanted += [
        ("reader", f"▸ {r.name}" + (f"  {r.summary}" if r.summary else ""), r.action or "")
        for r in readers
    ]
    wanted += (
        [("more", f"and {len(node.consumers) - MAX_SUBJECTS} more consumers", "")]
        if len(node.consumers) > MAX_SUBJECTS + 1
        else []
    )
    limit = MAX_WIDTH - 2 * PAD - BAR
    badge = 74.0 if node.action or node.kind != "stream" else 0.0
    rows = []
    for role, text, fate in wanted:
        size, mono, bold = STYLE[role]
        rows.append(
            Row(
                truncate_middle(
                    text, limit - (badge if role == "name" else 0), size, mono=mono, bold=bold
                ),
                text,
                role,
                fate,
            )
        )
    needed = max(_row_width(row) + (badge if row.role == "name" else 0) for row in rows)
    return Card(
        node, tuple(rows), max(110.0, needed + 2 * PAD + BAR), len(rows) * LINE + 2 * PAD - 4
    )


def _visible_subjects(subjects: tuple[str, ...]) -> tuple[str, ...]:
    return subjects if len(subjects) <= MAX_SUBJECTS + 1 else subjects[:MAX_SUBJECTS]


def _row_width(row: Row) -> float:
    size, mono, bold = STYLE[row.role]
    return text_width(row.text, size, mono=mono, bold=bold)
