"""Lines under construction: styled pieces without markup, indented, printed unwrapped. Content is left to the views."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console

STYLES = {
    "create": "green", "update": "yellow", "delete": "red", "replace": "red", "import": "cyan", "forget": "blue",
    "bad": "bold red", "warn": "yellow", "good": "green", "dim": "dim", "strong": "bold", "": "",
}  # fmt: skip

StyledText = tuple[str, str] | str


class Lines:
    """Collects lines of pieces `(text, role)`. The caller hands in safe text only (`render.safe`)."""

    def __init__(self) -> None:
        self._rows: list[Text] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add(self, indent: int, *pieces: StyledText) -> None:
        """One line. Roles are keys of STYLES."""
        row = Text(" " * indent)
        for piece in pieces:
            text, role = (piece, "") if isinstance(piece, str) else piece
            row.append(text, STYLES[role])
        self._rows.append(row)

    def blank(self) -> None:
        """An empty line."""
        self._rows.append(Text())

    def extend(self, other: Lines) -> None:
        """All lines of another."""
        self._rows.extend(other._rows)

    def add_rows(self, rows: list[Text]) -> None:
        """Finished lines."""
        self._rows.extend(rows)

    @property
    def rows(self) -> list[Text]:
        """The lines as they are."""
        return list(self._rows)

    def plain(self) -> str:
        """The text without styles."""
        return "\n".join(row.plain for row in self._rows)

    def print(self, console: Console) -> None:
        """Write everything at once; a long line is left to the terminal to wrap, so that it can be copied."""
        if self._rows:
            console.print(Text("\n").join(self._rows), soft_wrap=True)
