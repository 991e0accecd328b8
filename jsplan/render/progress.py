"""Progress on stderr while a workflow runs, as plain lines or JSON lines."""

from __future__ import annotations

import json
import re
import time
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from msgspec.structs import asdict

from jsplan.documents.apply import (
    ApplyStarted,
    BytesMoved,
    MessagesMoved,
    MoveProgress,
    ObjectsRead,
    StepFinished,
    StepStarted,
)
from jsplan.documents.base import plain
from jsplan.documents.step_kinds import STEP_KINDS, StepKind
from jsplan.render.escape import safe
from jsplan.secrets import conceal
from jsplan.units import format_timestamp

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.documents.apply import ApplyEvent

#: Above this number of steps, successful steps are only counted.
MAX_STEP_LINES = 200
#: Lines that such a count gets.
PROGRESS_LINES = 20
#: Seconds between two lines about the progress of a copy in a log.
REPORT_SECONDS = 10.0
_KINDS = dict[str, StepKind](STEP_KINDS.items())
#: The verbs of titles, and their ends.
_ENDS = {
    "create": "created",
    "update": "updated",
    "delete": "deleted",
    "import": "imported",
    "forget": "forgotten",
}
#: The text after the object of a title. Names of objects have no spaces.
_REST = re.compile(r"(?:,|:) .*")
_STATUS_LABELS = {"done": "done", "failed": "FAILED", "skipped": "skipped", "unknown": "UNKNOWN"}


class Progress(Protocol):
    """An observer of workflows (`Observer`) that can clear the screen for a question."""

    def phase(self, text: str) -> None:
        """Report the start of a phase."""

    def event(self, event: ApplyEvent) -> None:
        """Report the start or end of a step."""

    def warn(self, text: str) -> None:
        """Report a warning immediately."""

    def stop(self) -> None:
        """Clear the screen; the next event starts the output again."""


def finished_line(event: StepFinished) -> str:
    """Return `hub/stream/ORDERS: created (0.1s)`, or `done: ` and the title of another step.

    The error of the step follows, if it has one.
    """
    result = event.result
    head = _changed_object(event) or f"{_STATUS_LABELS[result.status]}: {event.title}"
    text = result.error or result.note
    return f"{safe(head)} ({event.seconds:.1f}s)" + (f": {safe(text)}" if text else "")


def _changed_object(event: StepFinished) -> str:
    """Return the address as the plan has it, and its end; empty for a part of a longer way."""
    op, (verb, _, object_and_rest) = event.result.op, event.title.partition(" ")
    kind = _KINDS.get(op)
    if event.result.status != "done" or verb not in _ENDS or kind is None:
        return ""
    if kind.does != verb and op != f"state.{verb}":
        return ""
    rest = _REST.search(object_and_rest)
    return f"{event.result.address}: {_ENDS[verb]}{rest[0] if rest else ''}"


def format_copied(event: MessagesMoved) -> str:
    """Return `250,000 of 1,000,000 messages, 120,000/s, 6s left`."""
    done = min(event.done, event.total) if event.total else event.done
    line = f"{done:,} of {event.total:,} messages" if event.total else f"{done:,} messages"
    return line + format_pace(done, event.total, event.seconds)


def format_move(event: MoveProgress) -> str:
    """Return `2,345 of 5,596 operations left, 1,200/s, 3s left; waiting for quorum`."""
    pace = format_pace(event.highest - event.lag, event.highest, event.seconds)
    left = f"{event.lag:,} of {event.highest:,} operations left" if event.lag else ""
    return "; ".join(filter(None, [left and left + pace, safe(event.reason)])) or "waiting"


def format_pace(done: int, total: int, seconds: float) -> str:
    """Return `, 120,000/s, 6s left` after so many seconds; nothing left where `total` is 0."""
    if not done or not seconds:
        return ""
    left = f", {(total - done) * seconds / done:.0f}s left" if total > done else ""
    return f", {done / seconds:,.0f}/s{left}"


class PlainProgress:
    """Progress for logs: one line per phase and per finished step.

    Of many steps, only those that fail have their own line; the others are counted, with their
    rate and the time that is left. `clock` returns seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._total = self._done = 0
        self._began = 0.0
        self._last_reports: dict[str, float] = {}

    def phase(self, text: str) -> None:
        """Report the start of a phase."""
        self._last_reports.clear()
        self._write(f"{safe(text)} ...")

    def event(self, event: ApplyEvent) -> None:
        """Report the end of a step."""
        if isinstance(event, ApplyStarted):
            self._total, self._done, self._began = event.steps, 0, self._clock()
        if isinstance(event, MessagesMoved) and self._is_due(event):
            self._write(f"{safe(event.title)}: {format_copied(event)}")
        if isinstance(event, MoveProgress) and self._is_due(event):
            self._write(f"{safe(event.title)}: {format_move(event)}")
        if not isinstance(event, StepFinished):
            return
        self._done += 1
        head = f"[{self._done}/{self._total}] " if self._total else ""
        if self._total <= MAX_STEP_LINES or event.result.status != "done" or event.result.note:
            self._write(head + finished_line(event))
        elif self._done == self._total or self._done % (self._total // PROGRESS_LINES) == 0:
            pace = format_pace(self._done, self._total, self._clock() - self._began)
            self._write(f"{head}steps finished{pace}")

    def _is_due(self, event: MessagesMoved | MoveProgress) -> bool:
        """Return True if the next line about a copy or a move is due."""
        if event.seconds - self._last_reports.get(event.id, 0.0) < REPORT_SECONDS:
            return False
        self._last_reports[event.id] = event.seconds
        return True

    def warn(self, text: str) -> None:
        """Report a warning immediately."""
        self._write(f"Warning: {safe(text)}")

    def stop(self) -> None:
        """Do nothing: no part of the screen is in use."""

    def _write(self, line: str) -> None:
        try:
            self._stream.write(f"{conceal(line)}\n")
            self._stream.flush()
        except (OSError, ValueError, UnicodeError):
            pass  # a failure to report progress must not end an apply


class JsonProgress(PlainProgress):
    """Progress as JSON lines, for log collectors (`--log-format json`)."""

    def phase(self, text: str) -> None:
        """Report the start of a phase."""
        self._record("info", phase=text)

    def event(self, event: ApplyEvent) -> None:
        """Report the start or end of a step."""
        if isinstance(event, BytesMoved | ObjectsRead):
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
        if isinstance(event, MoveProgress):
            if self._is_due(event):
                self._record("info", **asdict(event) | {"seconds": round(event.seconds, 1)})
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
                **plain(event.result),
                title=event.title,
                seconds=round(event.seconds, 3),
            )

    def warn(self, text: str) -> None:
        """Report a warning immediately."""
        self._record("warning", message=text)

    def _record(self, level: str, **fields: Any) -> None:
        self._write(json.dumps({"time": format_timestamp(), "level": level} | fields))
