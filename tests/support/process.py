"""Run `jsplan` as a user does, in this process or as a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from jsplan.cli.main import main

PROGRAM = Path(sys.executable).with_name("jsplan")


class ProcessResult(NamedTuple):
    """The end of a process: exit code and output."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        """All output with single blanks, so that line breaks do not matter."""
        return " ".join(f"{self.out} {self.err}".split())


def run_here(*args: str) -> ProcessResult:
    """Run a command line of `jsplan` in this process, to save the imports."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", newline="") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(args)
    for stream in (out, err):
        stream.seek(0)
    return ProcessResult(code, out.read(), err.read())


def jsplan(folder: Path, *args: str) -> ProcessResult:
    """Run a command line of `jsplan` in a folder, without input."""
    with (
        contextlib.chdir(folder),
        Path(os.devnull).open(encoding="utf-8") as nothing,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "stdin", nothing)
        return run_here(*args)


def run_process(folder: Path, *args: str, timeout: float = 30, **options: Any) -> ProcessResult:
    """Run the installed `jsplan` in a folder.

    `options` go to `subprocess.run`. Stdin is empty unless they say otherwise.
    """
    if "input" not in options:
        options.setdefault("stdin", subprocess.DEVNULL)
    completed = subprocess.run(
        [PROGRAM, *args],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        **options,
    )
    return ProcessResult(completed.returncode, completed.stdout, completed.stderr)


def start_process(folder: Path, *args: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start `jsplan` in a folder and leave it running; the caller reads its output.

    `options` go to `subprocess.Popen`.
    """
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [PROGRAM, *args], cwd=folder, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, **options
    )
