from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import click
import pytest

from jsplan.cli.lazy import LazyGroup
from jsplan.cli.main import root
from jsplan.cli.settings import Settings
from tests.docs.pages import PAGES, ROOT, blocks, name

SHOWN = [
    (name(page), command)
    for page in PAGES
    for block in blocks(page)
    if block.language in ("console", "shell")
    for line in block.text.splitlines()
    if (command := line.removeprefix("$ ").strip()).startswith("jsplan ")
    if block.language == "shell" or line.startswith("$ ")
]
_ENDS = {">", "|", "||", "&&", "<", "#"}


def words(command: str) -> list[str]:
    """Return the arguments, without what the shell would do with the output."""
    out: list[str] = []
    for word in shlex.split(command, comments=True)[1:]:
        if word in _ENDS:
            break
        out.append(word)
    return out


def parse(
    command: click.Command, name: str, arguments: list[str], parent: click.Context | None = None
) -> None:
    """Parse a command line down to its last command; raise click's error or AssertionError."""
    more: dict[str, Any] = {} if parent else {"obj": Settings()}
    context = command.make_context(name, list(arguments), parent, **more)
    if not isinstance(command, LazyGroup):
        return
    rest = [*context._protected_args, *context.args]  # noqa: SLF001 - click shows them only to itself
    if rest:
        found, inner, rest = command.resolve_command(context, rest)
        assert inner is not None
        parse(inner, str(found), rest, context)


def test_commands_on_the_pages_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Every `jsplan …` on a page has only commands, options and values of this release."""
    monkeypatch.chdir(tmp_path)
    wrong = {}
    for page, command in SHOWN:
        try:
            parse(root, "jsplan", words(command))
        except (AssertionError, click.UsageError) as error:
            wrong[page, command] = error

    assert wrong == {}


def test_the_check_finds_what_is_wrong() -> None:
    """An unknown command, an unknown option and a bad value are found."""
    for line in (
        "jsplan reverse 1",
        "jsplan plan --nonsense",
        "jsplan plan --allow-hazard NONE",
        "jsplan drift --fail-on weather",
    ):
        with pytest.raises((AssertionError, click.UsageError)):
            parse(root, "jsplan", words(line))


def test_there_are_commands_to_check() -> None:
    """README, tutorial and how-to pages all show commands."""
    assert {"README.md", "docs/tutorial.md", "docs/how-to/adopt.md"} <= {page for page, _ in SHOWN}


def test_only_ways_to_install_that_exist() -> None:
    """Pages and examples install a clone, and name no release of the action.

    Nothing is published yet.
    """
    shown = [path for path in (ROOT / "examples").rglob("*") if path.suffix in (".yml", ".yaml")]
    found = re.compile(r"pipx? install (?:--quiet )?[\"']?jsplan|OWNER/jsplan@v\d")

    assert [name(path) for path in [*PAGES, *shown] if found.search(path.read_text("utf-8"))] == []
