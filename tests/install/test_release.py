"""The files of `make release`: the same bytes twice, and a first plan on a bare machine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import subprocess
import sys
import tarfile
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT
from tests.install.interpreters import find_interpreters
from tests.install.ways import WAYS, Release, Request
from tools.release import PYTHONS, commit_time

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

#: Seconds: a release downloads the wheels of every Python, and a package index may be slow.
pytestmark = [pytest.mark.download, pytest.mark.timeout(1800)]

#: What jsplan without extras may weigh, in bytes, with bytecode and everything that it needs.
LARGEST_INSTALL = 40_000_000
LOGGER = logging.getLogger(
    __name__
)  # a table with --log-cli-level INFO: CPU of the installation, CPU and time of the plan
WORKSPACE = """
jsplan: 1
workspace: shop
connections: {{hub: {{url: "{url}", user: acc, password: acc}}}}
domains: {{hub: {{connection: hub}}}}
streams:
  - {{name: ORDERS, domain: hub, subjects: ["orders.>"]}}
"""


def build(folder: Path) -> Release:
    """Run what `make release` runs."""
    subprocess.run(
        [sys.executable, "-m", "tools.release", str(folder)], cwd=ROOT, check=True, timeout=900
    )
    return Release(folder)


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Build the release of this tree."""
    return build(tmp_path_factory.mktemp("release") / "dist")


def cpu_seconds() -> float:
    """Return the CPU seconds of all children until now, which no other load changes."""
    spent = os.times()
    return spent.children_user + spent.children_system


def normalize(name: str, version: str) -> tuple[str, str]:
    """Return a package with its name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower(), version


def hashes(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
    }


def test_two_runs_make_the_same_bytes(release: Release, tmp_path: Path) -> None:
    """A second run builds the same files, byte by byte, and SHA256SUMS fits them."""
    again = build(tmp_path / "dist")

    assert hashes(again.folder) == hashes(release.folder)
    listed = (release.folder / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    assert {line.split("  ")[1]: line.split("  ")[0] for line in listed} == {
        name: digest for name, digest in hashes(release.folder).items() if name != "SHA256SUMS"
    }


def test_the_sdist_builds_the_wheel(release: Release, tmp_path: Path) -> None:
    """The wheel that is built from the sdist is the wheel of the release."""
    with tarfile.open(release.sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": commit_time()}

    subprocess.run(command, cwd=tree, env=environment, check=True, timeout=120)

    (built,) = tmp_path.glob("*.whl")
    assert built.read_bytes() == release.wheel.read_bytes()


def test_the_sbom_lists_what_the_single_file_contains(release: Release) -> None:
    """Each package of `jsplan.pyz` is in the SBOM with its version, and nothing else is."""
    text = release.sbom.read_text(encoding="utf-8")
    sbom = json.loads(text)
    with zipfile.ZipFile(release.pyz) as archive:
        wheels = {name.split("/")[1] for name in archive.namelist() if name.startswith(".deps/")}
    contained = {normalize(*wheel.split("-")[:2]) for wheel in wheels if wheel}
    parts = [*sbom["components"], sbom["metadata"]["component"]]
    listed = {normalize(part["name"], part["version"]) for part in parts}

    assert sbom["bomFormat"] == "CycloneDX"
    assert listed == contained
    assert "file://" not in text


@pytest.mark.parametrize("way", WAYS)
def test_the_first_plan_on_a_bare_machine(
    way: str,
    release: Release,
    tools: Path,
    clean_hub_leaf: Sandbox,
    tmp_path: Path,
) -> None:
    """Each way, with each Python that is here: at most 40 MB, and a plan by HOME and PATH alone."""
    interpreters = find_interpreters(PYTHONS)
    assert interpreters

    for python, interpreter in interpreters.items():
        folder = tmp_path / python
        folder.mkdir()
        # Install in one way, plan once, and check what was printed and what it takes.
        request = Request(release, interpreter, folder, tools)
        workspace, home = request.folder / "shop", request.folder / "home"
        workspace.mkdir()
        home.mkdir()
        text = WORKSPACE.format(url=clean_hub_leaf["hub"].url)
        (workspace / "jsplan.yaml").write_text(text, encoding="utf-8")
        begun = cpu_seconds()

        installed = WAYS[way](request)
        ready, started = cpu_seconds(), time.monotonic()
        done = subprocess.run(
            [*installed.command, "plan"],
            cwd=workspace,
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
            check=False,
        )
        planned, waited = cpu_seconds(), time.monotonic() - started

        LOGGER.info(
            "| %s | %s | %.1f MB | %.1f s | %.1f s | %.1f s |",
            *(
                way,
                request.folder.name,
                installed.size / 1e6,
                ready - begun,
                planned - ready,
                waited,
            ),
        )
        assert (done.returncode, "Plan: 1 to add" in done.stdout) == (0, True), done.stdout
        assert "arning" not in done.stdout
        assert installed.size <= LARGEST_INSTALL
