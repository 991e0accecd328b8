"""A reader who runs the commands of a page and compares what is printed."""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from tests.docs.pages import ROOT, Block, blocks
from tools.terminal import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: Columns of a terminal that wraps nothing, since pages show lines as a file has them.
WIDE = 500
ANSWERS = {"Only the word yes approves: ": "yes"}
#: The addresses of `jsplan sandbox up`, as pages show them.
DOCUMENTED = {"hub": "nats://127.0.0.1:4222", "leaf": "nats://127.0.0.1:4111"}
PROGRAMS = {"jsplan": [sys.executable, "-m", "jsplan"], "python": [sys.executable], "cat": ["cat"]}


class PageReader:
    """A reader in a folder of their own; `urls` are those of the documented servers."""

    def __init__(
        self,
        folder: Path,
        urls: Mapping[str, str],
        *,
        jsplan: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.root = self.folder = folder
        self.addresses = {DOCUMENTED[name]: url for name, url in urls.items()}
        self.programs = PROGRAMS if jsplan is None else {"jsplan": [str(jsplan)], "cat": ["cat"]}
        self.environment = dict(
            environment or {**os.environ, "ACC_PASSWORD": "acc", "PYTHONPATH": str(ROOT)}
        )

    def write(self, block: Block) -> None:
        """Write a titled block into the file of its title."""
        path = self.root / block.title
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._here(block.text), encoding="utf-8")

    def _here(self, text: str) -> str:
        for documented, real in self.addresses.items():
            text = text.replace(documented, real)
        return text

    def run_command(self, command: str) -> str:
        """Run one command and return what it left on the screen."""
        words = shlex.split(command)
        if words[0] == "cd":
            self.folder /= words[1]
            return ""
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self.environment[name] = self._here(value)
            return ""
        done = record(
            [*self.programs[words[0]], *words[1:]],
            folder=self.folder,
            environment=self.environment,
            answers=ANSWERS,
            columns=WIDE,
        )
        for file in self.root.rglob("jsplan.yaml"):
            file.write_text(self._here(file.read_text(encoding="utf-8")), encoding="utf-8")
        shown = done.plain.replace(f"{self.folder}/", "")
        for documented, real in self.addresses.items():
            shown = shown.replace(real, documented)
        return shown


def normalize_output(text: str) -> list[str]:
    """Return the lines without seconds, times and the order of steps that run at once."""
    timeless = re.sub(r"20\d\d-\d\d-\d\dT[\d:.]+Z", "TIME", text.strip("\n"))
    timeless = re.sub(r"(JSPLAN_STAGING_\w+_)[0-9a-f]{8}\b", r"\1ID", timeless)
    lines = re.sub(r"\(\d+\.\ds\)$", "(0.0s)", timeless, flags=re.MULTILINE).split("\n")
    places = [number for number, line in enumerate(lines) if line.endswith("(0.0s)")]
    for number, line in zip(places, sorted(lines[number] for number in places), strict=True):
        lines[number] = line
    return lines


def play_page(walk: PageReader, page: str) -> None:
    """Run the commands of a page, and compare what each prints with what the page shows."""
    for block in blocks(ROOT / page):
        if block.title and block.language in ("yaml", "python"):
            walk.write(block)
        if block.language != "console" or block.before == "<!-- demo -->":
            continue
        for command, printed in block.commands:
            if command != "jsplan sandbox up":
                assert normalize_output(printed) == normalize_output(walk.run_command(command)), (
                    f"{page}: {command}"
                )
