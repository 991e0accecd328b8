"""The ways of installing a release, each into an empty folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True)
class Release:
    """The folder that `make release` filled."""

    folder: Path

    @property
    def wheel(self) -> Path:
        """Return the path of the wheel."""
        (wheel,) = self.folder.glob("*.whl")
        return wheel

    @property
    def sdist(self) -> Path:
        """Return the path of the sdist."""
        (sdist,) = self.folder.glob("*.tar.gz")
        return sdist

    @property
    def sbom(self) -> Path:
        """Return the path of the SBOM."""
        (sbom,) = self.folder.glob("*.cdx.json")
        return sbom

    @property
    def pyz(self) -> Path:
        """Return the path of the single file."""
        return self.folder / "jsplan.pyz"


@dataclass(frozen=True)
class Installed:
    """A jsplan that was installed: how it is started, and how many bytes came with it."""

    command: list[str]
    size: int


@dataclass(frozen=True)
class Request:
    """The order to install a release for one interpreter into one folder, with these tools."""

    release: Release
    python: Path
    folder: Path
    tools: Path

    def run(self, *command: str | Path, **variables: Path | str) -> None:
        """Run one command of the installation."""
        environment = {**os.environ, **{name: str(value) for name, value in variables.items()}}
        environment.pop("PYTHONPATH", None)
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        subprocess.run(command, env=environment, check=True, timeout=600, stdout=subprocess.DEVNULL)


def measure(folder: Path) -> int:
    """Return the bytes of all files below a folder, bytecode included."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sum(path.stat().st_size for path in files)


def install_with_pip(request: Request) -> Installed:
    """Install the wheel with pip into a virtual environment."""
    venv = request.folder / "venv"
    request.run(request.python, "-m", "venv", venv)
    before = measure(venv)
    request.run(venv / "bin" / "pip", "install", "--quiet", request.release.wheel)
    return Installed([str(venv / "bin" / "jsplan")], measure(venv) - before)


def install_with_pipx(request: Request) -> Installed:
    """Install the wheel with pipx."""
    request.run(
        *(request.tools / "pipx", "install", "--python", request.python, request.release.wheel),
        PIPX_HOME=request.folder / "pipx",
        PIPX_BIN_DIR=request.folder / "bin",
        PIPX_MAN_DIR=request.folder / "man",
        USE_EMOJI="0",
    )
    (packages,) = (request.folder / "pipx" / "venvs" / "jsplan").glob("lib/python*/site-packages")
    return Installed([str(request.folder / "bin" / "jsplan")], measure(packages))


def install_with_uv(request: Request) -> Installed:
    """Install the wheel with `uv tool`."""
    request.run(
        *(request.tools / "uv", "tool", "install", "--quiet", "--no-config"),
        *("--python", request.python, request.release.wheel),
        UV_TOOL_DIR=request.folder / "uv",
        UV_TOOL_BIN_DIR=request.folder / "bin",
        UV_LINK_MODE="copy",
    )
    return Installed([str(request.folder / "bin" / "jsplan")], measure(request.folder / "uv"))


def copy_pyz(request: Request) -> Installed:
    """Copy the single file, which installs nothing."""
    copied = request.folder / "jsplan.pyz"
    shutil.copy(request.release.pyz, copied)
    return Installed([str(request.python), str(copied)], copied.stat().st_size)


WAYS: Final[dict[str, Callable[[Request], Installed]]] = {
    "pip": install_with_pip,
    "pipx": install_with_pipx,
    "uv": install_with_uv,
    "pyz": copy_pyz,
}
