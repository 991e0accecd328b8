"""The pages that people read, and the blocks of code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        ROOT / "state" / "SPEC.md",
        *(ROOT / "examples").glob("*/README.md"),
        *(ROOT / "docs").rglob("*.md"),
    ]
)
_BLOCK = re.compile(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Block:
    """One block of code: its language, its title, its text, and the line before it."""

    language: str
    title: str
    text: str
    before: str

    @property
    def commands(self) -> list[tuple[str, str]]:
        """Return each command of a console block with what it prints."""
        parts = re.split(r"^\$ (.*)\n", self.text, flags=re.MULTILINE)
        return list(zip(parts[1::2], parts[2::2], strict=True))


def name(page: Path) -> str:
    """Return the name of the page as people call it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """Return every block of code on the page, in order."""
    text = page.read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        yield Block(
            found[1],
            found[2] or "",
            found[3],
            text[: found.start()].rstrip("\n").rsplit("\n", 1)[-1],
        )
