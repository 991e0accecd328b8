"""The hooks for pre-commit, run as it runs them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.process import ProcessResult, jsplan
from tests.support.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]
GIT = shutil.which("git") or "/usr/bin/git"
HOOKS: dict[str, dict[str, Any]] = {
    hook["id"]: hook for hook in read_yaml((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))
}
HEAD = "jsplan: 1\nworkspace: w\nconnections: {c: {url: 'nats://localhost'}}\ndomains: {hub: {connection: c}}\n"
TIDY = "streams:\n  - {name: A, domain: hub, subjects: [a]}\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with a workspace in a folder, another file, and everything staged."""
    folder = tmp_path / "repo"
    (folder / "deploy").mkdir(parents=True)
    (folder / "deploy" / "jsplan.yaml").write_text(HEAD)
    (folder / "deploy" / "a.jsplan.yaml").write_text(TIDY)
    (folder / "other.yaml").write_text("a:   1\n")
    subprocess.run([GIT, "init", "--quiet", str(folder)], check=True)
    subprocess.run([GIT, "add", "."], cwd=folder, check=True)
    return folder


def run_hook(repository: Path, name: str, *args: str) -> ProcessResult:
    """Run a hook: its entry, the `args` of the user, and the staged files that it is for."""
    hook = HOOKS[name]
    listed = subprocess.run(
        [GIT, "ls-files"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = [path for path in listed if re.search(hook["files"], path)]
    assert files == ["deploy/a.jsplan.yaml", "deploy/jsplan.yaml"]
    program, *words = shlex.split(hook["entry"])
    assert program == "jsplan"
    return jsplan(repository, *words, *args, *(files if hook.get("pass_filenames", True) else []))


def test_the_hooks_pass_on_a_tidy_workspace(repository: Path) -> None:
    """Every hook ends with 0 and changes nothing."""
    assert set(HOOKS) == {"jsplan-validate", "jsplan-lint"}
    for name in HOOKS:
        ended = run_hook(repository, name, "-C", "deploy")
        assert ended.code == 0, ended.text
    assert (repository / "deploy" / "a.jsplan.yaml").read_text() == TIDY


@pytest.mark.parametrize("name", ["jsplan-validate", "jsplan-lint"])
def test_a_mistake_fails(repository: Path, name: str) -> None:
    """A file that is wrong ends the hook with an error that names it."""
    (repository / "deploy" / "a.jsplan.yaml").write_text(TIDY.replace("subjects", "subject"))

    ended = run_hook(repository, name, "-C", "deploy")

    assert ended.code == 1
    assert "a.jsplan.yaml:2:" in ended.err


@pytest.mark.download
@pytest.mark.timeout(600)
def test_pre_commit_itself_runs_them(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pre-commit from PyPI installs this repository and runs the hooks over all files."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "--quiet", "pre-commit"], check=True)
    monkeypatch.setenv("PRE_COMMIT_HOME", str(tmp_path / "cache"))
    config = repository / ".pre-commit-config.yaml"
    config.write_text(
        f"repos:\n- repo: {ROOT}\n  rev: {read_commit()}\n  hooks:\n"
        "  - {id: jsplan-validate, args: [-C, deploy]}\n  - {id: jsplan-lint, args: [-C, deploy]}\n"
    )
    subprocess.run([GIT, "add", "."], cwd=repository, check=True)

    ended = subprocess.run(
        [venv / "bin" / "pre-commit", "run", "--all-files", "--color", "never"],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert len(re.findall(r"^jsplan (validate|lint)\.+Passed$", ended.stdout, re.MULTILINE)) == 2


def read_commit() -> str:
    """Return the commit of this repository that has the hooks."""
    return subprocess.run(
        [GIT, "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
