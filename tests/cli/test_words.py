from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from jsplan import __version__
from jsplan.cli.main import COMMANDS, main, root
from tests.support.process import run_here
from tests.support.yaml_text import read_yaml

ROOT = Path(__file__).parents[2]


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Help lists every command with what it is for."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out

    for name, entry in COMMANDS.items():
        assert f"  {name} " in out
        assert entry.help in out


def test_help_lists_options_apart_from_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments without dashes are not listed as options, with any release of click."""
    assert main(["backup", "--help"]) == 0
    out = capsys.readouterr().out

    assert "ADDRESS... DIR" in out.partition("Options:")[0]
    assert "DIR\n" not in out.partition("Options:")[2]


def test_no_command_is_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help is printed."""
    assert main([]) == 0
    assert "Everyday:" in capsys.readouterr().out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command explains itself and names the command that lists the global options."""
    for name in sorted(COMMANDS):
        assert main([name, "--help"]) == 0
        out = capsys.readouterr().out
        assert out.endswith("are listed by: jsplan help options\n"), name
        assert "--chdir" not in out, name


def _commands(group: click.Command, path: str) -> list[tuple[str, click.Command]]:
    assert isinstance(group, click.Group)
    with click.Context(group, info_name=path) as ctx:
        inner = [
            (f"{path} {name}", group.get_command(ctx, name)) for name in group.list_commands(ctx)
        ]
    found = [(name, command) for name, command in inner if command is not None]
    return found + [
        deeper
        for name, command in found
        if isinstance(command, click.Group)
        for deeper in _commands(command, name)
    ]


def test_options_are_named_as_they_are_written() -> None:
    """The variable of an option has its name, such as JSPLAN_PLAN_ALLOW_HAZARD of plan."""
    for path, command in _commands(root, "jsplan"):
        for param in command.params:
            if isinstance(param, click.Option):
                longest = max(param.opts, key=len)
                name = longest.removeprefix("--").replace("-", "_")
                assert param.name == name, f"{path} {longest}"


def test_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong usage exits with 64, with the reason on stderr and nothing on stdout."""
    for line, says in read_yaml(Path(__file__).with_name("wrong_usage.yaml").read_text("utf-8")):
        assert main(shlex.split(line)) == 64, line
        captured = capsys.readouterr()
        assert captured.out == "", line
        assert captured.err.startswith("Error: "), line
        assert says in captured.err, line


def test_wrong_usage_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """With --json wrong usage is one JSON document on stdout."""
    assert main(["plan", "--taget", "--json"]) == 64
    document = json.loads(capsys.readouterr().out)

    assert (document["kind"], document["exit_code"]) == ("error", 64)
    assert "--target" in document["error"]["message"]


@pytest.mark.parametrize("line", [["version"], ["--version"]])
def test_version(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is printed for --version and for the command, also if JSPLAN_VERSION pins it."""
    monkeypatch.setenv("JSPLAN_VERSION", "0.1.0")

    assert main(line) == 0
    assert capsys.readouterr().out == f"jsplan {__version__}\n"


@pytest.mark.parametrize(
    "line",
    [
        ["--json", "version"],
        ["version", "--format", "json"],
        ["--format=text", "version", "--json"],
    ],
)
def test_global_options_work_before_and_after(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A global option is the same before and after the command; the nearer one wins."""
    assert main(line) == 0
    assert json.loads(capsys.readouterr().out)["jsplan_version"] == __version__


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each shell gets a completion script that calls jsplan."""
    assert main(["completion", shell]) == 0
    assert "_JSPLAN_COMPLETE" in capsys.readouterr().out


def _run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("JSPLAN_", "NO_COLOR", "FORCE_COLOR"))
    }
    return subprocess.run(
        [sys.executable, *args],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=clean | env,
        timeout=60,
    )


def test_completing_words() -> None:
    """A shell completes the commands and options of this release."""
    words = _run(
        "-m", "jsplan", COMP_WORDS="jsplan pl", COMP_CWORD="1", _JSPLAN_COMPLETE="bash_complete"
    ).stdout
    options = _run(
        "-m",
        "jsplan",
        COMP_WORDS="jsplan plan --tar",
        COMP_CWORD="2",
        _JSPLAN_COMPLETE="bash_complete",
    ).stdout

    assert words.split() == ["plain,plan"]
    assert "plain,--target" in options.split()


@pytest.mark.parametrize("line", [["--help"], ["plan", "--help"], ["version"]])
def test_help_loads_nothing_heavy(line: list[str]) -> None:
    """Help imports click and jsplan's own tables alone, so that it is quick."""
    log = _run("-X", "importtime", "-m", "jsplan", *line).stderr
    loaded = {
        row.rsplit("|", 1)[-1].strip().split(".")[0]
        for row in log.splitlines()
        if row.startswith("import time:")
    }

    assert "click" in loaded
    assert not loaded & {"rich", "nats", "orjson", "msgspec", "yaml", "deepdiff", "asyncio"}


def test_a_module_run_returns_the_exit_code() -> None:
    """`python -m jsplan` is the same program, with the same exit codes."""
    done = _run("-m", "jsplan", "pln")

    assert done.returncode == 64
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("env", "colored"),
    [
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "0"}, False),
    ],
)
def test_color_variables(
    env: dict[str, str], colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FORCE_COLOR colours without a terminal, NO_COLOR wins over it, and 0 counts as unset."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert ("\x1b[" in run_here("pln").err) is colored


def test_no_color_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """--no-color wins over the environment, before and after the command."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" not in run_here("--no-color", "graph").err
