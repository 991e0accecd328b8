"""Help is found the ways people look for it, and wrong usage names the command that it is about."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.commands import sandbox as sandbox_commands
from jsplan.cli.main import COMMANDS, main
from jsplan.cli.output import Output
from jsplan.cli.settings import Settings
from jsplan.cli.types import seen_from_here
from jsplan.sandbox.fleet import reached

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


@pytest.mark.parametrize("words", [["plan", "-h"], ["plan", "--help"], ["help", "plan"]])
def test_the_help_of_a_command(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """-h, --help and help COMMAND print the same."""
    assert main(["plan", "--help"]) == 0
    expected = capsys.readouterr().out

    assert main(words) == 0
    assert capsys.readouterr().out == expected


def test_the_help_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Help without a command lists all of them, and knows commands of commands."""
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in listed] == []

    assert main(["help", "state", "mv"]) == 0
    assert "Usage: jsplan state mv" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["help", "pln"], 'There is no command "jsplan pln". Did you mean "plan"?'),
        (["help", "plan", "x"], "jsplan plan has no commands of its own"),
        (["plan", "--out"], "See: jsplan plan --help"),
        (["state", "mv", "--lock-timeout"], "See: jsplan state mv --help"),
        (["state", "--format"], "See: jsplan state --help"),
    ],
)
def test_wrong_usage_names_its_command(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What is wrong points to the help of the command that was typed."""
    assert main(words) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["up", "single"], ["fleet", "1"]])
def test_the_sandbox_says_that_it_stopped(words: list[str]) -> None:
    """Ctrl-C ends the servers, and the last line says so."""
    command = [sys.executable, "-m", "jsplan", "sandbox", *words, *(["--free-ports"] if words[0] == "up" else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        while "Running." not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert "nats://127.0.0.1:" in first
    assert (rest, process.returncode) == ("Stopped.\n", 0)


def test_below_what_a_terminal_shows_for_ctrl_c(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal the last line begins on a line of its own."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sandbox_commands._stopped(Output(Settings(no_color=True)))  # noqa: SLF001 - a terminal is not needed for one line

    assert capsys.readouterr().err.endswith("\nStopped.\n")


def test_a_fleet_says_where_its_hub_is(hub_leaf: Sandbox) -> None:
    """The line has what a workspace needs."""
    assert reached(hub_leaf, 1).startswith(f"{hub_leaf['hub'].url} is the hub of 1 leaves; user acc")


def test_paths_are_shown_as_they_are_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file below the folder where the command was typed is named without that folder."""
    monkeypatch.chdir(tmp_path)
    assert seen_from_here(tmp_path / "a/found.jsplan.yaml") == "a/found.jsplan.yaml"
    assert seen_from_here(tmp_path.parent / "x") == str(tmp_path.parent / "x")
