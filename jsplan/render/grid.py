"""Aligned columns: what tables of a terminal are made of, without frames. What stands in them is left to the views."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsplan.render.lines import Lines, StyledText

#: A cell: its text, and its role (a key of `lines.STYLES`).
Cell = tuple[str, str] | str
#: Narrower than this no column is made, however little room there is.
MIN_WIDTH = 12
GAP = 2


def add_table(
    lines: Lines,
    head: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    *,
    left: int = 1,
    width: int | None = None,
) -> None:
    """A heading and its rows, indented by two. The first `left` columns stand left, the others right; an empty column is left out.

    In a terminal of `width` columns the left ones are shortened in their middle as far as needed; elsewhere nothing is cut.
    """
    kept = [i for i, _ in enumerate(head) if any(_text(row[i]) for row in rows)]
    widths = {i: max(len(head[i]), *(len(_text(row[i])) for row in rows)) for i in kept}
    if width is not None:
        _shrink_columns(widths, [i for i in kept if i < left], width - GAP * len(kept))
    lines.add(GAP, *_line([(text, "dim") for text in head], kept, widths, left))
    for row in rows:
        lines.add(GAP, *_line(row, kept, widths, left))


def _shrink_columns(widths: dict[int, int], narrow: list[int], room: int) -> None:
    """Take from the widest of the columns that may be shortened, until everything fits or nothing more can be taken."""
    while narrow and sum(widths.values()) > room:
        widest = max(narrow, key=lambda i: widths[i])
        if widths[widest] <= MIN_WIDTH:
            return
        widths[widest] -= 1


def _line(
    row: Sequence[Cell], kept: list[int], widths: dict[int, int], left: int
) -> list[StyledText]:
    pieces: list[StyledText] = []
    for position, i in enumerate(kept):
        shown = truncate_middle(_text(row[i]), widths[i])
        last = position == len(kept) - 1
        padded = (shown if last else shown.ljust(widths[i])) if i < left else shown.rjust(widths[i])
        pieces.append((padded + ("" if last else " " * GAP), _role(row[i])))
    while pieces and not _text(pieces[-1]).strip():
        pieces.pop()
    return [*pieces[:-1], (_text(pieces[-1]).rstrip(), _role(pieces[-1]))] if pieces else pieces


def truncate_middle(text: str, width: int) -> str:
    """The text with its middle left out where it is too long: names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _role(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]
