"""Progress on stderr while a workflow runs, as plain lines or JSON lines; the moving picture of a terminal is `live`'s."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from jsplan.documents.apply import ApplyStarted, BytesMoved, StepFinished, StepStarted
from jsplan.documents.backfill import MessagesMoved
from jsplan.render.escape import safe
from jsplan.secrets import conceal

if TYPE_CHECKING:
    from jsplan.documents.apply import ApplyEvent

#: Steps above which what goes well is only counted, in logs and above the bar of a terminal.
MAX_STEP_LINES = 200
#: In so many lines.
PROGRESS_LINES = 20
#: How often a log says how far a copy is. Seconds.
REPORT_SECONDS = 10.0
_STATUS_LABELS = {"done": "done", "failed": "FAILED", "skipped": "skipped", "unknown": "UNKNOWN"}


class Progress(Protocol):
    """An observer of workflows (`workflows.options.Observer`) that can also get out of the way of a question."""

    def phase(self, text: str) -> None:
        """A phase begins."""

    def event(self, event: ApplyEvent) -> None:
        """A step started or finished."""

    def warn(self, text: str) -> None:
        """Something to know now."""

    def stop(self) -> None:
        """Leave the screen to others; what comes after begins again."""


def finished_line(event: StepFinished) -> str:
    """`done create stream ORDERS (0.1s)`, with the error of a step that has one."""
    result = event.result
    line = f"{_STATUS_LABELS[result.status]}: {safe(event.title)} ({event.seconds:.1f}s)"
    return line + (f": {safe(result.error)}" if result.error else "")


def format_copied(event: MessagesMoved) -> str:
    """`250,000 of 1,000,000 messages, 120,000/s, 6s left`."""
    done = min(event.done, event.total) if event.total else event.done
    line = f"{done:,} of {event.total:,} messages" if event.total else f"{done:,} messages"
    if done and event.seconds:
        line += f", {done / event.seconds:,.0f}/s"
        line += f", {(event.total - done) * event.seconds / done:.0f}s left" if event.total else ""
    return line


class PlainProgress:
    """One line per phase and per finished step: for logs. Of many steps only those that do not go well have their own line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._total = self._done = 0
        self._last_report = 0.0

    def phase(self, text: str) -> None:
        """A phase begins."""
        self._last_report = 0.0
        self._write(f"{safe(text)} ...")

    def event(self, event: ApplyEvent) -> None:
        """A step started or finished; only its end is worth a line."""
        if isinstance(event, ApplyStarted):
            self._total, self._done = event.steps, 0
        if isinstance(event, MessagesMoved) and self._is_due(event):
            self._write(f"{safe(event.title)}: {format_copied(event)}")
        if not isinstance(event, StepFinished):
            return
        self._done += 1
        head = f"[{self._done}/{self._total}] " if self._total else ""
        if self._total <= MAX_STEP_LINES or event.result.status != "done":
            self._write(head + finished_line(event))
        elif self._done == self._total or self._done % (self._total // PROGRESS_LINES) == 0:
            self._write(f"{head}steps finished")

    def _is_due(self, event: MessagesMoved) -> bool:
        """A log has a line for every so many seconds of a copy."""
        if event.seconds - self._last_report < REPORT_SECONDS:
            return False
        self._last_report = event.seconds
        return True

    def warn(self, text: str) -> None:
        """Something to know now."""
        self._write(f"Warning: {safe(text)}")

    def stop(self) -> None:
        """Nothing is held on the screen."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"{conceal(line)}\n")
            self._stream.flush()
        except (OSError, ValueError, UnicodeError):
            pass  # progress must not end an apply


class JsonProgress(PlainProgress):
    """The same as JSON lines, for log collectors (`--log-format json`)."""

    def phase(self, text: str) -> None:
        """A phase begins."""
        self._record("info", phase=text)

    def event(self, event: ApplyEvent) -> None:
        """A step started or finished."""
        if isinstance(event, BytesMoved):
            return
        if isinstance(event, MessagesMoved):
            if self._is_due(event):
                self._record(
                    "info",
                    copy=event.id,
                    title=event.title,
                    done=event.done,
                    total=event.total,
                    seconds=round(event.seconds, 1),
                )
            return
        if isinstance(event, ApplyStarted):
            self._record("info", steps=event.steps, status="started")
        elif isinstance(event, StepStarted):
            self._record(
                "info", step=event.id, address=event.address, title=event.title, status="started"
            )
        else:
            self._record(
                "info" if event.result.status == "done" else "error",
                **event.result.to_json(),
                title=event.title,
                seconds=round(event.seconds, 3),
            )

    def warn(self, text: str) -> None:
        """Something to know now."""
        self._record("warning", message=text)

    def _record(self, level: str, **fields: Any) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write(json.dumps({"time": stamp, "level": level} | fields))
