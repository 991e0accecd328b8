"""Environments as users have them: empty, with the wheel of this tree alone."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs.pages import ROOT
from tests.support.process import ProcessResult


@dataclass(frozen=True)
class Installation:
    """A virtual environment with jsplan in it, and the variables that its commands run with."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)

    @property
    def program(self) -> Path:
        """Return the `jsplan` that pip has installed."""
        return self.folder / "bin" / "jsplan"

    @property
    def environment(self) -> dict[str, str]:
        """Return the variables of a bare machine.

        No PYTHONPATH, and no nats-server on PATH but its own.
        """
        home = self.folder.parent / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "HOME": str(home),
            "LANG": "C.UTF-8",
            **self.variables,
        }

    def jsplan(self, folder: Path, *words: str) -> ProcessResult:
        """Run one command in a folder to its end."""
        ended = subprocess.run(
            [self.program, *words],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return ProcessResult(ended.returncode, ended.stdout, ended.stderr)


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this tree, as `make build` does, and return its path."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("jsplan-*.whl")
    return wheel


def make_environment(folder: Path) -> Installation:
    """Make an empty environment, without pip."""
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True, timeout=60
    )
    return Installation(folder)


def install(requirement: str, installed: Installation, pip_cache: Path) -> None:
    """Install a requirement, and what it needs, into an environment."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        str(installed.folder / "bin" / "python"),
        "--cache-dir",
        str(pip_cache),
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--no-compile",
        requirement,
    ]
    subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": ""}, check=True, timeout=280)
