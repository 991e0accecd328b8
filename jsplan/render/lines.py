"""Styled lines without markup, indented or in columns; wrapped in a terminal only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console


STYLES = {
    "create": "green", "update": "yellow", "delete": "red", "replace": "red", "import": "cyan",
    "forget": "blue",
    "bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim", "strong": "bold", "": "",
}  # fmt: skip

StyledText = tuple[str, str] | str
#: A line: its pieces, or the finished text.
_Row = tuple[StyledText, ...] | Text
_WORD = re.compile(r"\S+\s*")
_PART = re.compile(r"[^/]*/|[^/]+")
#: Columns by which the rest of a wrapped line is indented further than its beginning.
_HANG = 2


class Lines:
    """A collection of lines of pieces `(text, role)`; the text must be safe (`render.safe`).

    They become styled text only where styles show: that takes most of the time of a large plan.
    """

    def __init__(self) -> None:
        self._rows: list[_Row] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, indent: int, *pieces: StyledText) -> None:
        """Add one line. Roles are keys of STYLES."""
        self._rows.append((" " * indent, *pieces))

    def add_command(self, indent: int, command: str) -> None:
        """Add a line to be copied, which is never wrapped."""
        self._rows.append(Text(" " * indent + command, no_wrap=True))

    def blank(self) -> None:
        """Add an empty line."""
        self._rows.append(())

    def extend(self, other: Lines) -> None:
        """Add all lines of another collection."""
        self._rows.extend(other._rows)

    def add_rows(self, rows: list[Text]) -> None:
        """Add finished lines."""
        self._rows.extend(rows)

    @property
    def rows(self) -> list[Text]:
        """All lines."""
        return [_style(row) for row in self._rows]

    def plain(self) -> str:
        """Return the text without styles."""
        return "\n".join(map(_strip_styles, self._rows))

    def print(self, console: Console) -> None:
        """Write everything at once; in a terminal, wrapped between words."""
        if self._rows and not console.is_terminal and console.color_system is None:
            console.file.write(f"{self.plain()}\n")
            console.file.flush()
        elif self._rows:
            rows = [part for row in self.rows for part in wrap(row, console.width)]
            console.print(Text("\n").join(rows), soft_wrap=True)


def _style(row: _Row) -> Text:
    if isinstance(row, Text):
        return row
    text = Text()
    for piece in row:
        shown, role = (piece, "") if isinstance(piece, str) else piece
        text.append(shown, STYLES[role])
    return text


def _strip_styles(row: _Row) -> str:
    if isinstance(row, Text):
        return row.plain
    return "".join([piece if isinstance(piece, str) else piece[0] for piece in row])


def wrap(row: Text, width: int) -> list[Text]:
    """Break a line between its words, and indent the rest.

    A word that is wider than a line is broken after a slash: it is an address or a path.
    """
    plain = row.plain
    if row.no_wrap or len(plain) * 2 <= width or cell_len(plain) <= width:
        return [row]
    margin = len(plain) - len(plain.lstrip(" ")) + _HANG
    breaks: list[int] = []
    used = margin - _HANG
    for begin, piece in _pieces(plain, width - margin):
        if used + cell_len(piece.rstrip()) > width and begin > margin:
            breaks.append(begin)
            used = margin
        used += cell_len(piece)
    parts = list(row.divide(breaks))
    for part in parts:
        part.rstrip()
    return [parts[0], *(Text(" " * margin).append_text(part) for part in parts[1:])]


def _pieces(line: str, width: int) -> Iterator[tuple[int, str]]:
    """Yield what may not be broken, each with its place in the line."""
    for word in _WORD.finditer(line):
        if cell_len(word[0].rstrip()) <= width:
            yield word.start(), word[0]
        else:
            parts = _PART.finditer(word[0])
            yield from ((word.start() + part.start(), part[0]) for part in parts)


# --- tables ---------------------------------------------------------------------------------------

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
