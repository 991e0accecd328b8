"""Progress on a terminal: a spinner per phase, and the running steps of an apply.

This module loads rich.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from rich.console import Group
from rich.live import Live as RichLive
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from jsplan.documents.apply import (
    ApplyStarted,
    BytesMoved,
    MessagesMoved,
    MoveProgress,
    ObjectsRead,
    StepStarted,
)
from jsplan.render.escape import safe
from jsplan.render.lines import wrap
from jsplan.render.progress import (
    MAX_STEP_LINES,
    finished_line,
    format_copied,
    format_move,
    format_pace,
)
from jsplan.units import format_bytes

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from jsplan.documents.apply import ApplyEvent


#: Seconds between two frames.
FRAME_SECONDS: Final = 1 / 12


class LiveProgress:
    """A spinner per phase; during an apply a bar above the running steps.

    Lines and frames are written under one lock. The refresh thread of rich takes none while a line
    is on its way, and a line that removes a frame of another height leaves a part of it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: RichLive | None = None
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._running: dict[str, tuple[str, float]] = {}
        self._moved: dict[str, tuple[int, int]] = {}
        self._copies: dict[str, MessagesMoved] = {}
        self._moves: dict[str, str] = {}
        self._read: ObjectsRead | None = None
        self._noun = "step"
        self._phase, self._began = "", time.monotonic()
        self._steps_began = self._began
        self._total = self._done = 0
        self._wheel = Spinner("dots")  # one for the whole life, so that it turns evenly

    def phase(self, text: str) -> None:
        """Show the start of a phase."""
        self._phase, self._began = safe(text), time.monotonic()
        self._copies.clear()
        self._read = None
        self._show()

    def event(self, event: ApplyEvent) -> None:
        """Show the start or end of a step."""
        if isinstance(event, ApplyStarted):
            self._total, self._done, self._noun = event.steps, 0, event.noun
            self._steps_began = time.monotonic()
            return
        if isinstance(event, BytesMoved):
            self._moved[event.id] = (event.done, event.total)
            return
        if isinstance(event, MessagesMoved):
            self._copies[event.id] = event
            return
        if isinstance(event, MoveProgress):
            self._moves[event.id] = f": {format_move(event)}"
            return
        if isinstance(event, ObjectsRead):
            self._read = event
            return
        if isinstance(event, StepStarted):
            self._running[event.id] = (safe(event.title), time.monotonic())
            self._show()
            return
        self._running.pop(event.result.id, None)
        self._moved.pop(event.result.id, None)
        self._moves.pop(event.result.id, None)
        self._done += 1
        done = event.result.status == "done"
        if self._total <= MAX_STEP_LINES or not done or event.result.note:
            self._print_line(finished_line(event), "green" if done else "bold red")

    def warn(self, text: str) -> None:
        """Print a warning."""
        self._print_line(f"Warning: {safe(text)}", "yellow")

    def stop(self) -> None:
        """Clear the moving part of the screen."""
        self._stopped.set()
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
        self._running.clear()

    def _print_line(self, line: str, style: str) -> None:
        head, colon, rest = line.partition(":")
        with self._lock:
            rows = wrap(Text.assemble((head, style), colon + rest), self._console.width)
            self._console.print(Text("\n").join(rows), soft_wrap=True)

    def _show(self) -> None:
        if self._live is None:
            self._stopped = threading.Event()
            self._live = RichLive(
                get_renderable=self._render_frame,
                console=self._console,
                transient=True,
                auto_refresh=False,
            )
            self._live.start()
            threading.Thread(target=self._refresh, args=(self._stopped,), daemon=True).start()

    def _refresh(self, stopped: threading.Event) -> None:
        """Draw frames until the live display is stopped."""
        while not stopped.wait(FRAME_SECONDS):
            with self._lock:
                if not stopped.is_set() and self._live is not None:
                    self._live.refresh()

    def _render_frame(self) -> RenderableType:
        now = time.monotonic()
        if not self._running:
            read = _format_read(self._read)
            seconds = _format_seconds(now - self._began)
            wheel = self._spinner(Text(f" {self._phase}{read} {seconds}"))
            if self._copies:
                return Group(wheel, _render_copies(list(self._copies.values())[:8]))
            return wheel
        head = Text(self._format_steps(now - self._steps_began), "bold")
        running = list(self._running.items())[:8]
        rows: list[RenderableType] = [
            Text(
                f"    {title}{self._moves.get(id_, '')} {_format_seconds(now - began)}",
                "dim",
                overflow="ellipsis",
                no_wrap=True,
            )
            for id_, (title, began) in running
            if id_ not in self._moved
        ]
        bars = [
            (title, began, *self._moved[id_])
            for id_, (title, began) in running
            if id_ in self._moved
        ]
        return Group(self._spinner(head), *rows, *([_render_bars(bars, now)] if bars else []))

    def _format_steps(self, seconds: float) -> str:
        """Return ` 1,200 of 5,000 steps`, for many steps with their rate and the time left."""
        nouns = f"{self._noun}s"
        if not self._total:
            return f" {self._done:,} {nouns} done"
        many = self._total > MAX_STEP_LINES
        pace = format_pace(self._done, self._total, seconds) if many else ""
        return f" {self._done:,} of {self._total:,} {nouns}{pace}"

    def _spinner(self, text: Text) -> Spinner:
        self._wheel.update(text=text)
        return self._wheel


def _render_bars(moving: list[tuple[str, float, int, int]], now: float) -> Table:
    """Return a row for each transfer: title, bar, amount and rate.

    Totals are estimates, so the amount shown never exceeds them.
    """
    table = Table.grid(padding=(0, 1, 0, 1))
    table.add_column(max_width=50, overflow="ellipsis", no_wrap=True)
    for title, began, done, total in moving:
        rate = done / max(now - began, 0.1)
        shown = (
            f"{format_bytes(min(done, total))} of {format_bytes(total)}"
            if total
            else format_bytes(done)
        )
        table.add_row(
            Text(f"   {title}"),
            _bar(done, total),
            Text(shown, "dim"),
            Text(f"{format_bytes(int(rate))}/s {_format_seconds(now - began)}", "dim"),
        )
    return table


def _render_copies(copies: list[MessagesMoved]) -> Table:
    """Return a row for each copy: bar, messages, rate, and remaining time."""
    table = Table.grid(padding=(0, 1, 0, 1))
    for copy in copies:
        bar = _bar(copy.done, copy.total)
        table.add_row(Text("   "), bar, Text(format_copied(copy), "dim"))
    return table


def _bar(done: int, total: int) -> ProgressBar:
    return ProgressBar(total=total or None, completed=min(done, total), width=24, pulse=not total)


def _format_read(read: ObjectsRead | None) -> str:
    """Return `: 1,250 of 3,000`, or nothing."""
    if read is None:
        return ""
    return f": {read.done:,} of {read.total:,}" if read.total else f": {read.done:,} objects"


def _format_seconds(seconds: float) -> str:
    return f"{seconds:.0f}s" if seconds >= 1 else ""
