from __future__ import annotations

import json
from io import StringIO
from itertools import count

import pytest
from rich.console import Console
from rich.text import Text

from jsplan.documents.apply import (
    ApplyStarted,
    BytesMoved,
    MoveProgress,
    ObjectsRead,
    StepFinished,
    StepResult,
    StepStarted,
)
from jsplan.render.progress import JsonProgress, PlainProgress
from jsplan.render.progress_live import LiveProgress
from tools.terminal import visible_lines

STARTED = StepStarted("s1", "hub/stream/A", "create stream A in hub")
DONE = StepFinished(
    StepResult("s1", "hub/stream/A", "stream.create", "done"), "create stream A in hub", 0.12
)
FAILED = StepFinished(
    StepResult("s2", "hub/stream/B", "stream.create", "failed", "no\x1b space"),
    "create stream B in hub",
    1.0,
)


def test_plain_lines() -> None:
    """A log gets a line per phase and finished step, counted, with the error of a failed one."""
    stream = StringIO()
    progress = PlainProgress(stream)
    progress.phase("Reading 2 domains")
    progress.event(ApplyStarted(2))
    for event in (STARTED, DONE, FAILED):
        progress.event(event)
    progress.warn("waiting for the lock")
    progress.stop()

    assert stream.getvalue().splitlines() == [
        "Reading 2 domains ...",
        "[1/2] hub/stream/A: created (0.1s)",
        "[2/2] FAILED: create stream B in hub (1.0s): no\\x1b space",
        "Warning: waiting for the lock",
    ]


def test_many_steps_are_counted() -> None:
    """A log of five thousand steps has twenty lines of progress, and one for each failed step.

    The lines have the rate, and the time that is left.
    """
    stream, seconds = StringIO(), count()
    progress = PlainProgress(stream, lambda: next(seconds) * 0.5)
    progress.event(ApplyStarted(5000))
    for number in range(5000):
        progress.event(FAILED if number == 700 else DONE)
    lines = stream.getvalue().splitlines()

    assert (len(lines), lines[0], lines[-1]) == (
        21,
        "[250/5000] steps finished, 500/s, 10s left",
        "[5000/5000] steps finished, 500/s",
    )
    assert "[701/5000] FAILED: create stream B in hub (1.0s): no\\x1b space" in lines


def test_json_lines() -> None:
    """With --log-format json every line is a JSON object with a level."""
    stream = StringIO()
    progress = JsonProgress(stream)
    progress.phase("Reading")
    for event in (STARTED, DONE, FAILED):
        progress.event(event)
    progress.warn("waiting")
    records = [json.loads(line) for line in stream.getvalue().splitlines()]

    assert [r["level"] for r in records] == ["info", "info", "info", "error", "warning"]
    assert records[2]["status"] == "done"
    assert records[3]["error"] == "no\x1b space"


def test_progress_survives_a_closed_stream() -> None:
    """A log whose reader has ended does not end an apply."""
    stream = StringIO()
    stream.close()
    PlainProgress(stream).phase("Reading")


def test_moved_bytes_are_a_bar_on_a_terminal_only() -> None:
    """Moved bytes are a bar with amount and speed on a terminal, and no line in a log."""
    stream = StringIO()
    live = LiveProgress(Console(file=stream, force_terminal=True, width=120))
    live.event(ApplyStarted(2, "stream"))
    live.event(STARTED)
    live.event(BytesMoved("s1", 3 * 1024 * 1024, 12 * 1024 * 1024))
    live._live.refresh()  # type: ignore[union-attr]  # noqa: SLF001 - the picture of this instant
    live.event(BytesMoved("s1", 13 * 1024 * 1024, 12 * 1024 * 1024))
    live._live.refresh()  # type: ignore[union-attr]  # noqa: SLF001
    shown = stream.getvalue()
    assert "0 of 2 streams" in shown
    assert "3.0 MiB of 12.0 MiB" in shown
    assert "MiB/s" in shown
    assert "12.0 MiB of 12.0 MiB" in shown
    live.event(DONE)
    live._live.refresh()  # type: ignore[union-attr]  # noqa: SLF001
    stream.seek(0)
    stream.truncate()
    live._live.refresh()  # type: ignore[union-attr]  # noqa: SLF001
    live.stop()
    assert "MiB" not in stream.getvalue()

    for log in (PlainProgress, JsonProgress):
        stream = StringIO()
        log(stream).event(BytesMoved("s1", 1, 2))
        assert stream.getvalue() == ""


def test_reading_counts_on_a_terminal_only() -> None:
    """A phase that reads shows its count on a terminal; a log gets no line for it."""
    stream, console = StringIO(), Console(width=80, force_terminal=True)
    live, plain = LiveProgress(console), PlainProgress(stream)
    live._phase = "Reading 3,000 objects in 1 domain"  # noqa: SLF001

    for progress in (live, plain):
        progress.event(ObjectsRead(1250, 3000))

    with console.capture() as capture:
        console.print(live._render_frame())  # noqa: SLF001 - a frame, without a clock
    assert "Reading 3,000 objects in 1 domain: 1,250 of 3,000" in capture.get()
    assert stream.getvalue() == ""


def test_live_picture() -> None:
    """A terminal shows the running steps, keeps a line for each end, and is clean after stop."""
    stream = StringIO()
    console = Console(file=stream, force_terminal=True, color_system=None, width=80)
    progress = LiveProgress(console)
    progress.phase("Reading [2] domains")
    progress.event(ApplyStarted(2))
    progress.event(STARTED)
    console.print(progress._render_frame())  # noqa: SLF001 - what the terminal shows between two refreshes
    progress.event(DONE)
    progress.event(FAILED)
    progress.warn("odd")
    progress.stop()
    text = stream.getvalue()

    assert "0 of 2 steps" in text
    assert "hub/stream/A: created (0.1s)" in text
    assert "FAILED: create stream B in hub (1.0s): no\\x1b space" in text
    assert progress._live is None  # noqa: SLF001 - the moving part is gone


def test_many_steps_have_a_rate_on_a_terminal() -> None:
    """Above two hundred steps a terminal shows their rate, and the time that is left."""
    progress = LiveProgress(Console(file=StringIO(), force_terminal=True, width=80))
    for steps, expected in ((2, " 1 of 2 steps"), (5000, " 1 of 5,000 steps, 2/s, 2500s left")):
        progress.event(ApplyStarted(steps))
        progress.event(DONE)
        assert progress._format_steps(0.5) == expected  # noqa: SLF001 - a frame, without a clock


def test_lines_and_frames_do_not_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """No part of a frame stays on the screen, however lines and frames interleave."""
    monkeypatch.setattr("jsplan.render.progress_live.FRAME_SECONDS", 0.0001)
    stream = StringIO()
    progress = LiveProgress(Console(file=stream, force_terminal=True, color_system=None, width=80))
    progress.event(ApplyStarted(0))
    for number in range(600):
        for step in range(number % 5):
            progress.event(StepStarted(f"{number}-{step}", "hub/stream/A", "create"))
        progress.warn(f"line {number}")
        for step in range(number % 5):
            progress._running.pop(f"{number}-{step}")  # noqa: SLF001 - an end without a line
    progress.stop()

    lines = [Text.from_ansi(line).plain.rstrip() for line in visible_lines(stream.getvalue())]
    assert [line for line in lines if line] == [f"Warning: line {n}" for n in range(600)]


def test_a_move_in_a_log_has_a_line_every_ten_seconds_and_its_note_at_the_end() -> None:
    """Operations left, rate and reason; a step that is done keeps what remains."""
    stream = StringIO()
    progress = PlainProgress(stream)
    for lag, seconds in ((3000, 1.0), (2000, 10.0), (1500, 15.0), (0, 20.0)):
        progress.event(MoveProgress("s1", "hub/stream/A: moving", "adding n3", lag, 3000, seconds))
    result = StepResult("s1", "hub/stream/A", "stream.update", "done", note="n2 offline")
    progress.event(StepFinished(result, "update stream A", 21.0))

    assert stream.getvalue().splitlines() == [
        "hub/stream/A: moving: 2,000 of 3,000 operations left, 100/s, 20s left; adding n3",
        "hub/stream/A: moving: adding n3",
        "hub/stream/A: updated (21.0s): n2 offline",
    ]
