"""The files that only run elsewhere: the container and the release workflow."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.download, pytest.mark.timeout(900)]  # seconds: it installs jsplan

CONTAINERFILE = ROOT / "Containerfile"
WORKFLOW = ROOT / ".github" / "workflows" / "release.yml"


def test_the_linters_have_nothing_to_say(tools: Path) -> None:
    """The Containerfile passes hadolint, and the release workflow passes zizmor."""
    for command in (
        [str(tools / "hadolint"), str(CONTAINERFILE)],
        [str(tools / "zizmor"), "--offline", "--no-progress", str(WORKFLOW)],
    ):
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_files_say_that_they_do_not_run_here() -> None:
    """The first line of each says what cannot be run where jsplan is developed."""
    for path in (CONTAINERFILE, WORKFLOW):
        assert path.read_text(encoding="utf-8").startswith("# Cannot be ")


def test_the_first_stage_installs_jsplan(tmp_path: Path) -> None:
    """The files that the first stage copies are enough for what it runs, and jsplan starts."""
    stage = CONTAINERFILE.read_text(encoding="utf-8").split("FROM ")[1].replace("\\\n", "")
    source, installed = tmp_path / "src", tmp_path / "opt" / "jsplan"
    for copied in re.findall(r"^COPY (.+)$", stage, re.MULTILINE):
        *names, target = copied.split()
        for name in names:
            copy(ROOT / name, source / target, folder=target.endswith("/"))
    (command,) = re.findall(r"^RUN (.+)$", stage, re.MULTILINE)

    subprocess.run(
        ["/bin/sh", "-c", command.replace("/opt/jsplan", str(installed))],
        cwd=source,
        check=True,
        timeout=600,
    )

    version = [str(installed / "bin" / "jsplan"), "version"]
    assert subprocess.run(version, check=True, capture_output=True, timeout=60).stdout


def copy(source: Path, target: Path, *, folder: bool) -> None:
    """Copy as COPY does: into a folder whose name ends with a slash, else under this name."""
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        return
    path = target / source.name if folder else target
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(source, path)
