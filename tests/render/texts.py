"""The text of a view, and its comparison with the golden files."""

from __future__ import annotations

from collections.abc import Callable
from io import StringIO

from rich.console import Console

View = Callable[[Console], None]
Compare = Callable[[str, View], str]


def text_of(view: View, *, width: int = 100) -> str:
    """Return the text of a view where there is no terminal."""
    stream = StringIO()
    view(Console(file=stream, width=width, force_terminal=False, color_system=None))
    return stream.getvalue()
