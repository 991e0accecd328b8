"""Aligned columns for the tables of a terminal, without frames."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsplan.render.lines import Lines, StyledText

#: A cell: its text, and its role (a key of `lines.STYLES`).
Cell = tuple[str, str] | str
#: The least width of a shortened column.
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
    """Add a heading and its rows, indented by two; empty columns are left out.

    The first `left` columns are aligned left, the others right. In a terminal of `width` columns
    the left ones are shortened in their middle as far as needed; otherwise nothing is cut.
    """
    columns = [i for i, _ in enumerate(head) if any(_text(row[i]) for row in rows)]
    widths = {i: max(len(head[i]), *(len(_text(row[i])) for row in rows)) for i in columns}
    if width is not None:
        _shrink_columns(widths, [i for i in columns if i < left], width - GAP * len(columns))
    lines.add(GAP, *_line([(text, "dim") for text in head], columns, widths, left))
    for row in rows:
        lines.add(GAP, *_line(row, columns, widths, left))


def _shrink_columns(widths: dict[int, int], narrow: list[int], limit: int) -> None:
    """Shorten the widest of the `narrow` columns until everything fits or nothing can be taken."""
    while narrow and sum(widths.values()) > limit:
        widest = max(narrow, key=lambda i: widths[i])
        if widths[widest] <= MIN_WIDTH:
            return
        widths[widest] -= 1


def _line(
    row: Sequence[Cell], columns: list[int], widths: dict[int, int], left: int
) -> list[StyledText]:
    pieces: list[StyledText] = []
    for position, i in enumerate(columns):
        shown = truncate_middle(_text(row[i]), widths[i])
        last = position == len(columns) - 1
        padded = (shown if last else shown.ljust(widths[i])) if i < left else shown.rjust(widths[i])
        pieces.append((padded + ("" if last else " " * GAP), _role(row[i])))
    while pieces and not _text(pieces[-1]).strip():
        pieces.pop()
    return [*pieces[:-1], (_text(pieces[-1]).rstrip(), _role(pieces[-1]))] if pieces else pieces


def truncate_middle(text: str, width: int) -> str:
    """Return the text, cut in its middle if it is too long: names differ at their ends."""
    if len(text) <= width:
        return text
    head = (width - 1) // 2
    return f"{text[:head]}…{text[len(text) - (width - 1 - head) :]}"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _role(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]
