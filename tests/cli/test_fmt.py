"""`jsplan fmt`: which files it writes, what it prints, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.process import jsplan

HEAD = "jsplan: 1\nworkspace: w\ndomains: {hub: {}}\n"
UNTIDY = "streams:\n- {name: A,   subjects: [a]}   # why\n"
TIDY = "streams:\n  - {name: A, subjects: [a]}   # why\n"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A workspace with a file to format, one that is formatted, and one of JSON."""
    (tmp_path / "jsplan.yaml").write_text(HEAD)
    (tmp_path / "a.jsplan.yaml").write_text(UNTIDY)
    (tmp_path / "b.jsplan.json").write_text('{"kv":[]}')
    return tmp_path


def test_the_files_of_the_workspace_are_formatted(workspace: Path) -> None:
    """Every YAML file is written and named; JSON is left unchanged and named on stderr."""
    done = jsplan(workspace, "fmt")

    assert (done.code, done.out) == (0, "a.jsplan.yaml\n")
    assert done.err == "b.jsplan.json is left unchanged: it is JSON.\n"
    assert (workspace / "a.jsplan.yaml").read_text() == TIDY
    assert (workspace / "b.jsplan.json").read_text() == '{"kv":[]}'
    assert jsplan(workspace, "fmt").out == ""


@pytest.mark.parametrize(
    ("options", "code"), [(("--check",), 2), (("--diff",), 0), (("--check", "--diff"), 2)]
)
def test_check_and_diff_write_nothing(workspace: Path, options: tuple[str, ...], code: int) -> None:
    """`--check` ends with 2, `--diff` prints the change; both write nothing."""
    done = jsplan(workspace, "fmt", *options)

    assert done.code == code
    assert ("+  - {name: A, subjects: [a]}   # why" in done.out) == ("--diff" in options)
    assert "1 file to format. Run: jsplan fmt" in done.err
    assert (workspace / "a.jsplan.yaml").read_text() == UNTIDY


def test_check_of_formatted_files(workspace: Path) -> None:
    """`--check` ends with 0 when nothing is to do."""
    jsplan(workspace, "fmt")

    assert jsplan(workspace, "fmt", "--check").code == 0


def test_named_files_alone(workspace: Path) -> None:
    """With FILE only these are formatted, as pre-commit calls it; they need no workspace."""
    other = workspace / "other" / "x.yaml"
    other.parent.mkdir()
    other.write_text("x-a:   1\n")

    done = jsplan(workspace, "fmt", "other/x.yaml", "--json")

    assert done.code == 0
    assert json.loads(done.out)["files"] == [{"path": "other/x.yaml", "changed": True, "kept": ""}]
    assert other.read_text() == "x-a: 1\n"
    assert (workspace / "a.jsplan.yaml").read_text() == UNTIDY


def test_a_broken_file_is_an_error_and_nothing_is_written(workspace: Path) -> None:
    """The error names file and line, and the other files stay."""
    (workspace / "c.jsplan.yaml").write_text("streams: [\n")

    done = jsplan(workspace, "fmt")

    assert done.code == 1
    assert "c.jsplan.yaml:1:" in done.err
    assert (workspace / "a.jsplan.yaml").read_text() == UNTIDY


def test_a_file_that_would_lose_a_comment_is_named(workspace: Path) -> None:
    """A comment between brackets keeps the file unchanged, and the check does not fail for it."""
    text = "streams:\n- {name: A, # why\n   subjects: [a]}\n"
    (workspace / "a.jsplan.yaml").write_text(text)

    done = jsplan(workspace, "fmt", "--check")

    assert done.code == 0
    assert "a.jsplan.yaml is left unchanged: the comment in line 2 would be lost." in done.err


def test_a_missing_file_is_an_error(workspace: Path) -> None:
    """A FILE that does not exist is an error with its name."""
    done = jsplan(workspace, "fmt", "nothing.yaml")

    assert done.code == 1
    assert "cannot read nothing.yaml" in done.err


def test_permissions_and_links_stay(workspace: Path) -> None:
    """A file keeps its mode, and a link stays a link."""
    real = workspace / "real.yaml"
    (workspace / "a.jsplan.yaml").rename(real)
    real.chmod(0o640)
    (workspace / "a.jsplan.yaml").symlink_to(real)

    assert jsplan(workspace, "fmt").code == 0
    assert (workspace / "a.jsplan.yaml").is_symlink()
    assert real.read_text() == TIDY
    assert real.stat().st_mode & 0o777 == 0o640
