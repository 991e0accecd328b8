"""Runs the installed `jsplan` as a user does: as a process of its own, with its own environment."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("jsplan")


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All that it said, with runs of white space as one blank, so that where lines were broken does not matter."""
        return " ".join(f"{self.out} {self.err}".split())


def jsplan(folder: Path, *args: str, timeout: float = 30, **options: Any) -> Ended:
    """Run `jsplan` in a folder to its end; `options` go to `subprocess.run`, and stdin is empty unless they say otherwise."""
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    ended = subprocess.run([PROGRAM, *args], cwd=folder, capture_output=True, text=True, timeout=timeout, check=False, **options)
    return Ended(ended.returncode, ended.stdout, ended.stderr)


def begin(folder: Path, *args: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `jsplan` in a folder and leave it running; its output is to be read by the caller. `options` go to `subprocess.Popen`."""
    pipe = subprocess.PIPE
    return subprocess.Popen([PROGRAM, *args], cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options)
