"""Progress on a terminal: a spinner per phase, during an apply what is under way. Loads rich; lines for logs are `progress`'s."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live as RichLive
from rich.spinner import Spinner
from rich.text import Text

from jsplan.documents.apply import ApplyStarted, StepStarted
from jsplan.render.progress import finished_line
from jsplan.render.safe import safe

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from jsplan.documents.apply import ApplyEvent


class Live:
    """A spinner per phase; during an apply a bar, with what is under way below it. Ends leave a line each."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichLive | None = None
        self._running: dict[str, tuple[str, float]] = {}
        self._phase, self._began = "", time.monotonic()
        self._total = self._done = 0
        self._wheel = Spinner("dots")  # one for the whole life, so that it turns evenly

    def phase(self, text: str) -> None:
        """A phase begins."""
        self._phase, self._began = safe(text), time.monotonic()
        self._show()

    def event(self, event: ApplyEvent) -> None:
        """A step started or finished."""
        if isinstance(event, ApplyStarted):
            self._total, self._done = event.steps, 0
            return
        if isinstance(event, StepStarted):
            self._running[event.id] = (safe(event.title), time.monotonic())
            self._show()
            return
        self._running.pop(event.result.id, None)
        self._done += 1
        self._say(finished_line(event), "green" if event.result.status == "done" else "bold red")

    def warn(self, text: str) -> None:
        """Something to know now."""
        self._say(f"Warning: {safe(text)}", "yellow")

    def stop(self) -> None:
        """Clear the screen of the moving part."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._running.clear()

    def _say(self, line: str, style: str) -> None:
        head, colon, rest = line.partition(":")
        self._console.print(Text.assemble((head, style), colon + rest), soft_wrap=True)

    def _show(self) -> None:
        if self._live is None:
            self._live = RichLive(get_renderable=self._picture, console=self._console, transient=True, refresh_per_second=12)
            self._live.start()

    def _picture(self) -> RenderableType:
        now = time.monotonic()
        if not self._running:
            return self._spinner(Text(f" {self._phase} {_seconds(now - self._began)}"))
        head = Text(f" {self._done} of {self._total} steps" if self._total else f" {self._done} steps done", "bold")
        rows = [
            Text(f"    {title} {_seconds(now - began)}", "dim", overflow="ellipsis", no_wrap=True)
            for title, began in list(self._running.values())[:8]
        ]
        return Group(self._spinner(head), *rows)

    def _spinner(self, text: Text) -> Spinner:
        self._wheel.update(text=text)
        return self._wheel


def _seconds(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds >= 1 else ""
