"""Findings and errors as text: what, where, what to do. Which there are is left to the rooms that found them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jsplan.render.lines import Lines
from jsplan.render.safe import safe, safe_lines

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from jsplan.diagnostics import Diagnostic

_COUNT = re.compile(r"\d+ errors?")
_HEADS = {"error": ("Error", "bad"), "warning": ("Warning", "warn"), "info": ("Note", "import")}


def render(diagnostics: Sequence[Diagnostic], console: Console, *, after: bool = False) -> None:
    """All findings in their order, an empty line between them, and after the last one with `after`."""
    lines = Lines()
    for number, diagnostic in enumerate(diagnostics):
        if number:
            lines.blank()
        _one(lines, diagnostic)
    if after and len(lines):
        lines.blank()
    lines.print(console)


def _one(lines: Lines, diagnostic: Diagnostic) -> None:
    head, role = _HEADS[diagnostic.severity]
    subject = f"{safe(diagnostic.address)}: " if diagnostic.address else ""
    lines.add(0, (f"{head}: ", role), (subject + safe(diagnostic.summary), "strong"), (f" [{safe(diagnostic.code)}]", "dim"))
    if diagnostic.range:
        lines.add(2, (f"at {safe(str(diagnostic.range))}", "import"))
    for line in safe_lines(diagnostic.detail):
        lines.add(2, line)


def render_error(message: str, hint: str, console: Console) -> None:
    """The last words of a command that failed: one line, then what to do about it.

    A message that only counts the findings above it is no news for one, and no error of its own for more.
    """
    lines = Lines()
    first, *rest = safe_lines(message) or ["no reason was given"]
    if not _COUNT.fullmatch(first):
        lines.add(0, ("Error: ", "bad"), (first, "strong"))
    elif first != "1 error":
        lines.blank()
        lines.add(0, (f"{first}.", "bad"))
    for line in (*rest, *safe_lines(hint)):
        lines.add(2, line)
    lines.print(console)
