"""Help is found in every usual way, and wrong usage names the command that it is about."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import click
import pytest

from jsplan.cli.commands import sandbox as sandbox_commands
from jsplan.cli.lazy import LazyGroup
from jsplan.cli.main import COMMANDS, SECTIONS, main, root
from jsplan.cli.output import Output
from jsplan.cli.settings import GlobalOption, Settings
from jsplan.codes import HAZARDS
from jsplan.disk import display_path
from jsplan.sandbox.foreground import describe_access

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


def _every_command() -> list[tuple[str, click.Command]]:
    def below(found: click.Command, path: str) -> list[tuple[str, click.Command]]:
        if not isinstance(found, LazyGroup):
            return [(path, found)]
        with click.Context(found, info_name=path) as ctx:
            inner = [(name, found.get_command(ctx, name)) for name in found.list_commands(ctx)]
        return [
            (path, found),
            *(two for name, one in inner if one for two in below(one, f"{path} {name}")),
        ]

    return below(root, "jsplan")


EVERY_COMMAND = _every_command()


def test_commands_are_listed_by_section(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is listed under its own of five sections."""
    assert main(["--help"]) == 0
    out = capsys.readouterr().out

    places = [out.index(f"\n{title}:\n") for title in SECTIONS]
    assert list(SECTIONS) == ["Everyday", "Migrate", "Data", "State", "Tools"]
    assert places == sorted(places)
    for place, after, table in zip(places, [*places[1:], len(out)], SECTIONS.values(), strict=True):
        assert [name for name in table if f"\n  {name} " not in out[place:after]] == []


def test_global_options_are_listed_once(capsys: pytest.CaptureFixture[str]) -> None:
    """`jsplan help options` lists the global options, and no other help does."""
    assert main(["help", "options"]) == 0
    page = capsys.readouterr().out

    names = [
        name
        for p in root.params
        if isinstance(p, GlobalOption)
        for name in p.opts
        if name.startswith("--")
    ]
    assert [name for name in names if f"{name} " not in page] == []
    assert main(["plan", "--help"]) == 0
    listed = capsys.readouterr().out.partition("Options:")[2].partition("Values:")[0]
    assert [name for name in names if f"{name} " in listed] == []


def test_every_command_has_examples() -> None:
    """Every command has one to three examples, each of which runs it."""
    for path, command in EVERY_COMMAND:
        examples = getattr(command, "examples", ())
        assert 1 <= len(examples) <= 3, path
        assert [line for line in examples if path not in line] == []


def test_every_value_is_explained() -> None:
    """Every value of an option is explained by its name, under Values, or in the text."""
    plain = {"OPTIONS", "COMMAND", "ARGS", "FILE", "DIR", "NAME", "URL", "N", "HOST", "PORT"}
    for path, command in EVERY_COMMAND:
        with click.Context(command, info_name=path) as ctx:
            page = command.get_help(ctx)
            usage = " ".join(command.collect_usage_pieces(ctx))
        options = [
            p
            for p in command.params
            if isinstance(p, click.Option) and not isinstance(p, GlobalOption)
        ]
        metavars = " ".join(p.metavar for p in options if p.metavar and not p.hidden)
        words = set(re.findall(r"\b[A-Z]+\b", f"{usage} {metavars}")) - plain - {"PATH", "KINDS"}
        text = page.partition("Options:")[0].partition("\n")[2]
        missing = [w for w in words if f"\n  {w} " not in page and w not in text]
        assert missing == [], path


def test_help_leaves_out_options_that_do_not_matter(capsys: pytest.CaptureFixture[str]) -> None:
    """The help of `destroy` has no option that concerns only creating and changing."""
    assert main(["destroy", "--help"]) == 0
    out = capsys.readouterr().out

    assert [
        name
        for name in ("--replace", "--adopt", "--reinstalled", "--no-backfill", "--refresh-only")
        if name in out
    ] == []
    assert "--target" in out


def test_hazards_are_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    """The codes that --allow-hazard takes are listed."""
    assert main(["apply", "--help"]) == 0
    out = capsys.readouterr().out

    assert [code for code, blocks in HAZARDS.items() if blocks and code not in out] == []


def test_the_help_of_all_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """Help without a command lists all commands, and those of commands."""
    assert main(["help"]) == 0
    listed = capsys.readouterr().out
    assert [name for name in COMMANDS if f"\n  {name} " not in listed] == []

    assert main(["help", "state", "mv"]) == 0
    assert "Usage: jsplan state mv" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["up", "single"], ["fleet", "1"]])
def test_the_sandbox_says_that_it_stopped(words: list[str]) -> None:
    """Ctrl-C ends the servers of the sandbox, and the last line says so."""
    command = [
        sys.executable,
        "-m",
        "jsplan",
        "sandbox",
        *words,
        *(["--free-ports"] if words[0] == "up" else []),
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        first = process.stdout.readline()
        while "Running." not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()

    assert "nats://127.0.0.1:" in first
    assert (rest, process.returncode) == ("Stopped.\n", 0)


def test_the_last_line_begins_below_ctrl_c(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the last line is below the characters of Ctrl-C."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    sandbox_commands._print_stopped(Output(Settings(no_color=True)))  # noqa: SLF001 - a terminal is not needed for one line

    assert capsys.readouterr().err.endswith("\nStopped.\n")


def test_a_fleet_says_where_its_hub_is(hub_leaf: Sandbox) -> None:
    """The line of a fleet has the URL of its hub, as a workspace needs it."""
    assert describe_access(hub_leaf["hub"].url, 1).startswith(
        f"{hub_leaf['hub'].url} is the hub of 1 leaves; user acc"
    )


def test_paths_are_relative_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file below the current folder is shown without that folder."""
    monkeypatch.chdir(tmp_path)
    assert display_path(tmp_path / "a/found.jsplan.yaml") == "a/found.jsplan.yaml"
    assert display_path(tmp_path.parent / "x") == str(tmp_path.parent / "x")
