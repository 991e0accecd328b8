"""Styled lines without markup, indented and printed unwrapped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "create": "green", "update": "yellow", "delete": "red", "replace": "red", "import": "cyan",
    "forget": "blue",
    "bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim", "strong": "bold", "": "",
}  # fmt: skip

StyledText = tuple[str, str] | str


class Lines:
    """A collection of lines of pieces `(text, role)`; the text must be safe (`render.safe`)."""

    def __init__(self) -> None:
        self._rows: list[Text] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, indent: int, *pieces: StyledText) -> None:
        """Add one line. Roles are keys of STYLES."""
        row = Text(" " * indent)
        for piece in pieces:
            text, role = (piece, "") if isinstance(piece, str) else piece
            row.append(text, STYLES[role])
        self._rows.append(row)

    def blank(self) -> None:
        """Add an empty line."""
        self._rows.append(Text())

    def extend(self, other: Lines) -> None:
        """Add all lines of another collection."""
        self._rows.extend(other._rows)

    def add_rows(self, rows: list[Text]) -> None:
        """Add finished lines."""
        self._rows.extend(rows)

    @property
    def rows(self) -> list[Text]:
        """All lines."""
        return list(self._rows)

    def plain(self) -> str:
        """Return the text without styles."""
        return "\n".join(row.plain for row in self._rows)

    def print(self, console: Console) -> None:
        """Write everything at once. The terminal wraps long lines, so that they can be copied."""
        if self._rows:
            console.print(Text("\n").join(self._rows), soft_wrap=True)
