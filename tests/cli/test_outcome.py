from __future__ import annotations

import errno
import io
import json
import logging
import os
import sys
from pathlib import Path

import click
import pytest
from msgspec import to_builtins

from jsplan.cli import exit_status
from jsplan.cli.main import main
from jsplan.cli.settings import Settings
from jsplan.diagnostics import Diagnostic, SourceRange
from jsplan.errors import (
    ConfigError,
    InterruptedByUser,
    JsplanError,
    NotAvailableError,
    PartialApplyError,
    RefusedError,
    StalePlanError,
    StateLockedError,
    UsageError,
)

FINDING = Diagnostic(
    "error", "JS101", "unknown key", "Remove it.", "hub/stream/A", SourceRange("a.yaml", 3, 5)
)
EXPLAIN = "\nTo explain a code: jsplan explain JS101\n"


def _exit_code(error: BaseException, settings: Settings | None = None) -> int:
    def run() -> None:
        raise error

    return exit_status.run_to_exit_code(run, settings or Settings(), [])


def test_exit_codes() -> None:
    """Each end of a command has the exit code of the table."""
    for error, code in [
        (JsplanError("x"), 1),
        (ConfigError([FINDING]), 1),
        (NotAvailableError("x"), 1),
        (RefusedError("x"), 3),
        (StalePlanError("x"), 4),
        (StateLockedError("x"), 5),
        (PartialApplyError("x"), 6),
        (UsageError("x"), 64),
        (InterruptedByUser("x"), 130),
        (KeyboardInterrupt(), 130),
        (click.Abort(), 130),
        (click.UsageError("x"), 64),
        (click.BadParameter("x"), 64),
        (click.FileError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (BrokenPipeError(), 1),
    ]:
        assert _exit_code(error) == code, error


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (2, 2)])
def test_the_result_of_a_command_is_its_exit_code(returned: int | None, code: int) -> None:
    """A command that returns nothing exits with 0."""
    assert exit_status.run_to_exit_code(lambda: returned, Settings(), []) == code


def test_an_error_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """The message and hint of an error go to stderr, and stdout stays empty."""
    _exit_code(JsplanError("it broke", hint="Mend it."))
    captured = capsys.readouterr()

    assert captured.out == ""
    assert captured.err == "Error: it broke\n  Mend it.\n"


def test_all_findings_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """All findings are printed with their places, then their number and a hint."""
    _exit_code(ConfigError([FINDING, FINDING]))

    one = "Error: hub/stream/A: unknown key [JS101]\n  at a.yaml:3:5\n  Remove it.\n"
    assert capsys.readouterr().err == f"{one}\n{one}\n2 errors.\n{EXPLAIN}"


def test_one_finding_is_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A single finding is printed without a number."""
    _exit_code(ConfigError([FINDING]))

    one = "Error: hub/stream/A: unknown key [JS101]\n  at a.yaml:3:5\n  Remove it.\n"
    assert capsys.readouterr().err == f"{one}{EXPLAIN}"


def test_a_bug_is_reported_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An unexpected exception is one line without a traceback."""
    _exit_code(KeyError("name"))
    err = capsys.readouterr().err

    assert err.startswith("Error: this is a bug in jsplan: KeyError: 'name'\n")
    assert "Traceback" not in err


@pytest.mark.parametrize("way", ["option", "variable"])
def test_the_traceback_on_request(
    way: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """-v and JSPLAN_DEBUG show where a bug happened."""
    if way == "variable":
        monkeypatch.setenv("JSPLAN_DEBUG", "1")
    _exit_code(KeyError("name"), Settings(verbose=1 if way == "option" else 0))

    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text",
    ["nats://acc:s3cret@hub:4222", "tls://s3cret@hub", "two: nats://a:s3cret@b nats://c:s3cret@d"],
)
def test_no_password_of_a_url_is_printed(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No output shows the credentials of a URL: neither text nor traceback nor JSON."""
    _exit_code(JsplanError(text, hint=text), Settings(format="json"))
    _exit_code(ValueError(text), Settings(verbose=1))
    captured = capsys.readouterr()

    assert "s3cret" not in captured.out + captured.err
    assert "***@" in captured.err


def test_an_error_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With --json an error is a document on stdout and in --json-into, and a message on stderr."""
    _exit_code(ConfigError([FINDING]), Settings(format="json", json_into=tmp_path / "out.json"))
    captured = capsys.readouterr()
    document = json.loads(captured.out)

    assert document == {
        "format_version": "1.0",
        "kind": "error",
        "exit_code": 1,
        "error": {"type": "ConfigError", "message": "1 error", "hint": None},
        "diagnostics": [to_builtins(FINDING)],
    }
    assert json.loads((tmp_path / "out.json").read_text()) == document
    assert "unknown key" in captured.err


def test_a_json_file_that_cannot_be_written_hides_no_error(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A first error is printed also when --json-into fails too."""
    assert (
        _exit_code(StalePlanError("stale"), Settings(json_into=tmp_path / "no" / "out.json")) == 4
    )
    assert capsys.readouterr().err == "Error: stale\n"


class _FullDisk(io.StringIO):
    """A stream onto a full disk."""

    def write(self, text: str) -> int:  # noqa: ARG002 - the signature of a stream
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("line", [["version"], ["version", "--json"], ["--help"]])
def test_a_full_disk_is_no_bug(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A result that cannot be written exits with 1 and the reason, without a traceback."""
    monkeypatch.setattr(sys, "stdout", _FullDisk())

    assert main(line) == 1
    assert capsys.readouterr().err.startswith("Error: cannot write")


def test_a_log_on_a_full_disk_costs_no_result(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message that stderr cannot take changes neither the result nor the exit code."""
    monkeypatch.setattr(sys, "stderr", _FullDisk())

    assert _exit_code(RefusedError("x"), Settings(format="json")) == 3
    assert json.loads(capsys.readouterr().out)["exit_code"] == 3


def test_logging_ends_with_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that logs leaves the logging of the program that calls it unchanged."""
    root = logging.getLogger()
    before = root.handlers, root.level
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jsplan.yaml").write_text("jsplan: 1\nworkspace: shop\n")

    assert main(["-vv", "drift"]) != 64
    assert "debug: asyncio: " in capsys.readouterr().err
    assert (root.handlers, root.level) == before


@pytest.mark.parametrize(
    "words",
    [["plan"], ["-C", "x", "plan"], ["lint"], ["init", "x"], ["plan", "--json-into", "a.json"]],
)
def test_a_folder_that_was_deleted(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A command that needs no folder works in a folder that was deleted."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert main(words) == 1
    assert "the current folder does not exist any more" in capsys.readouterr().err
    assert main(["version"]) == 0
