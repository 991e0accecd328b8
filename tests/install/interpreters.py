"""The Pythons of this machine that jsplan supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def find_interpreters(versions: tuple[str, ...]) -> dict[str, Path]:
    """Return the interpreter of each version that this machine has."""
    found = {version: find_interpreter(version) for version in versions}
    return {version: path for version, path in found.items() if path}


def find_interpreter(version: str) -> Path | None:
    """Return the interpreter of a version from PATH or pyenv; None if there is none."""
    named = shutil.which(f"python{version}")
    candidates = [Path(named)] if named else []
    candidates += sorted(PYENV.glob(f"{version}.*/bin/python3"), reverse=True)
    return next((path for path in candidates if is_version(path, version)), None)


def is_version(candidate: Path, version: str) -> bool:
    """Return whether this runs and is of the version: a shim of pyenv may lead nowhere."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [candidate, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() == version
