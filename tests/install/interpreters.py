"""The Pythons of this machine that jsplan supports."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tools.release import PYTHONS

PYENV = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"


def find_interpreters() -> dict[str, Path]:
    """Return the interpreter of each supported version that is to be had, from PATH or pyenv."""
    found: dict[str, Path] = {}
    for version in PYTHONS:
        named = shutil.which(f"python{version}")
        candidates = [Path(named)] if named else []
        candidates += sorted(PYENV.glob(f"{version}.*/bin/python3"), reverse=True)
        for candidate in candidates:
            if is_version(candidate, version):
                found[version] = candidate
                break
    return found


def is_version(candidate: Path, version: str) -> bool:
    """Return whether this runs and is of the version: a shim of pyenv may lead nowhere."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run(
        [candidate, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    return done.stdout.strip() == version
