"""Plays the pages that lead somebody by the hand, on real servers, and compares what is printed with what they say."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, Block, blocks
from tools.terminal import record

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

ANSWERS = {"Only the word yes approves: ": "yes"}
PROGRAMS = {"jsplan": [sys.executable, "-m", "jsplan"], "python": [sys.executable], "cat": ["cat"]}


class Walk:
    """One reader, who does what a page says, in a folder of their own and with their own servers."""

    def __init__(self, folder: Path, sandbox: Sandbox) -> None:
        self.root = self.folder = folder
        self.addresses = {"nats://127.0.0.1:4222": sandbox["hub"].url, "nats://127.0.0.1:4111": sandbox["leaf"].url}
        self.environment = {**os.environ, "ACC_PASSWORD": "acc", "PYTHONPATH": str(ROOT)}

    def write(self, block: Block) -> None:
        """Keep a titled block under its title."""
        path = self.root / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text), encoding="utf-8")

    def _here(self, text: str) -> str:
        for documented, real in self.addresses.items():
            text = text.replace(documented, real)
        return text

    def type(self, command: str) -> str:
        """Do one command and return what it left on the screen."""
        words = shlex.split(command)
        if words[0] == "cd":
            self.folder /= words[1]
            return ""
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment[name] = self._here(value)
            return ""
        done = record([*PROGRAMS[words[0]], *words[1:]], folder=self.folder, environment=self.environment, answers=ANSWERS)
        for file in self.root.rglob("jsplan.yaml"):
            file.write_text(self._here(file.read_text(encoding="utf-8")), encoding="utf-8")
        shown = done.plain.replace(f"{self.folder}/", "")
        for documented, real in self.addresses.items():
            shown = shown.replace(real, documented)
        return shown


def settled(text: str) -> list[str]:
    """The lines without what differs from run to run: seconds, times, and the order of steps that run at once."""
    timeless = re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+Z", "TIME", text.strip("\n"))
    lines = re.sub(r"\(\d+\.\ds\)$", "(0.0s)", timeless, flags=re.MULTILINE).split("\n")
    places = [number for number, line in enumerate(lines) if line.startswith("done: ")]
    for number, line in zip(places, sorted(lines[number] for number in places), strict=True):
        lines[number] = line
    return lines


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/tutorial-adopt.md", "docs/how-to/environments.md"])
def test_what_the_page_shows_is_what_is_printed(page: str, clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each command on the page prints, on real servers, what the page says that it prints."""
    walk = Walk(tmp_path, clean_hub_leaf)
    for block in blocks(ROOT / page):
        if block.title and block.language in ("yaml", "python"):
            walk.write(block)
        if block.language != "console" or block.before == "<!-- demo -->":
            continue
        for command, printed in block.commands:
            if command != "jsplan sandbox up":
                assert settled(printed) == settled(walk.type(command)), f"{page}: {command}"
