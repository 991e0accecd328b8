"""One status after the other, for `status --watch`.

A terminal is redrawn, a pipe gets text below text, and `json` one document per line.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.text import Text

from jsplan.documents.base import dumps
from jsplan.render import status_text
from jsplan.render.escape import safe
from jsplan.render.lines import wrap

if TYPE_CHECKING:
    from rich.console import Console

    from jsplan.documents.status import Status
    from jsplan.errors import JsplanError


class Frames:
    """The status views on the console; with `json`, documents."""

    def __init__(self, console: Console, *, json: bool = False, verbose: bool = False) -> None:
        self._console, self._json, self._verbose = console, json, verbose

    def show(self, status: Status) -> None:
        """Show the current status. On a terminal, what does not fit is left out from below."""
        if self._json:
            self._console.file.write(dumps(status.to_json(), pretty=False).decode() + "\n")
            self._console.file.flush()
        elif self._console.is_terminal:
            self._draw(status)
        else:
            self._console.print(Text(f"{status.timestamp}"))
            status_text.render(status, self._console, verbose=self._verbose)
            self._console.print()

    def _draw(self, status: Status) -> None:
        width = self._console.width
        lines = status_text.render_text(status, width, verbose=self._verbose)
        rows = [part for row in lines.rows for part in wrap(row, width)]
        limit = max(3, self._console.height - 3)
        shown = (
            rows
            if len(rows) <= limit
            else [
                *rows[: limit - 1],
                Text(f"  … {len(rows) - limit + 1} more; --target shows less", "dim"),
            ]
        )
        foot = Text(f"{status_text.summary_line(status)} {status.timestamp[11:]}", "dim")
        self._console.clear()
        self._console.print(Text("\n").join([*shown, foot]), soft_wrap=True, end="")

    def show_error(self, error: JsplanError) -> None:
        """Show that nothing could be read this time; the next check tries again."""
        sys.stderr.write(f"\n{safe(error.full_text)}\n")
        sys.stderr.flush()
