"""Run a command on a terminal of its own and return what stays on the screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.text import Text

COLUMNS = 100
_CONTROL = re.compile(r"\x1b\[(\??\d*(?:;\d+)*)([A-Za-z])|([\r\n])")


@dataclass(frozen=True, slots=True)
class Recording:
    """The end of a command: its exit code, and the lines on the screen, with colours."""

    exit_code: int
    lines: list[str]

    @property
    def plain(self) -> str:
        """Return the lines without colours and trailing blanks, as a file would have them."""
        texts = [Text.from_ansi(line).plain.rstrip() for line in self.lines]
        return "\n".join(texts).strip("\n") + "\n"


def record(
    command: list[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    answers: Mapping[str, str] | None = None,
    columns: int = COLUMNS,
) -> Recording:
    """Run it to its end. `answers` are typed, each once, when their prompt appears."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 400, columns, 0, 0))
    terminal = {
        name: value
        for name, value in environment.items()
        if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "COLORTERM")
    }
    terminal["TERM"] = "xterm-256color"
    with subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=terminal
    ) as process:
        os.close(theirs)
        written = _answer_prompts(ours, dict(answers or {}))
    os.close(ours)
    return Recording(process.returncode, visible_lines(written))


def _answer_prompts(terminal: int, answers: dict[str, str]) -> str:
    written = b""
    while piece := _read(terminal):
        written += piece
        for prompt in [prompt for prompt in answers if prompt.encode() in written]:
            os.write(terminal, f"{answers.pop(prompt)}\n".encode())
    return written.decode(errors="replace")


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux says EIO when the last writer has closed the terminal
        return b""


def visible_lines(written: str) -> list[str]:
    """Return the lines that stay on a terminal, without what spinners erased."""
    rows, row, at = [""], 0, 0
    for control in _CONTROL.finditer(written):
        rows[row] += written[at : control.start()]
        at = control.end()
        argument, letter, end = control.groups()
        if end == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        elif letter == "m":
            rows[row] += control.group()
        elif letter == "A":
            row = max(0, row - int(argument or 1))
        elif letter == "K":
            rows[row] = ""
    rows[row] += written[at:]
    return rows
