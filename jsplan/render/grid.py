"""Aligned columns for the tables of a terminal, without frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jsplan.render.lines import Lines, StyledText

#: A cell: its text, and its role (a key of `lines.STYLES`).
Cell = tuple[str, str] | str
#: The least width of a narrowed column.
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
    the left ones are narrowed as far as needed. A cell that is wider than its column is not cut:
    the rest of its row follows on the next line. A row of one cell is a heading within the table.
    """
    full = [row for row in rows if len(row) > 1]
    columns = [i for i, _ in enumerate(head) if any(_text(row[i]) for row in full)]
    widths = {i: max(len(head[i]), *(len(_text(row[i])) for row in full)) for i in columns}
    if width is not None:
        _shrink_columns(widths, [i for i in columns if i < left], width - GAP * len(columns))
    for row in ([(text, "dim") for text in head], *rows):
        for line in _row_lines(row, columns if len(row) > 1 else [0], widths, left, width):
            lines.add(GAP, *line)


def _shrink_columns(widths: dict[int, int], narrow: list[int], limit: int) -> None:
    """Narrow the widest of the `narrow` columns until everything fits or nothing can be taken."""
    while narrow and sum(widths.values()) > limit:
        widest = max(narrow, key=lambda i: widths[i])
        if widths[widest] <= MIN_WIDTH:
            return
        widths[widest] -= 1


def _row_lines(
    row: Sequence[Cell],
    columns: list[int],
    widths: dict[int, int],
    left: int,
    width: int | None,
) -> Iterator[list[StyledText]]:
    """Yield the lines of one row: another one after each cell that is wider than its column."""
    used = [i for i in columns if _text(row[i])]
    pieces: list[StyledText] = []
    start = at = 0  # where the column begins, and where the line ends
    for i in columns[: columns.index(used[-1]) + 1] if used else []:
        text = _text(row[i])
        begin = start + (0 if i < left or len(row) == 1 else widths[i] - len(text))
        beyond = width is not None and begin + len(text) > width - GAP
        if text and pieces and (at > begin or beyond):
            yield pieces
            pieces, at = [], 0
            begin = GAP * 2 if beyond and i < left else begin
        if text:
            pieces += [" " * (begin - at), (text, _role(row[i]))]
            at = begin + len(text)
        start += widths.get(i, 0) + GAP
    yield pieces


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell[0]


def _role(cell: Cell) -> str:
    return "" if isinstance(cell, str) else cell[1]
