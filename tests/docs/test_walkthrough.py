"""Plays the pages that lead a reader step by step, on real servers. README is played in `tests/install`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.commands.sandbox import text_of
from jsplan.sandbox.up import describe
from tests.docs.pages import ROOT, blocks
from tests.docs.walk import Walk, play

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

UP = "jsplan sandbox up"
PAGES = [
    "tutorial.md", "tutorial-adopt.md",
    "how-to/environments.md", "how-to/rename-or-split-a-stream.md", "how-to/troubleshooting.md",
]  # fmt: skip


@pytest.mark.parametrize("page", [f"docs/{page}" for page in PAGES])
def test_what_the_page_shows_is_what_is_printed(page: str, clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each command on the page prints, on real servers, what the page says that it prints."""
    play(Walk(tmp_path, {name: clean_hub_leaf[name].url for name in ("hub", "leaf")}), page)


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/tutorial-adopt.md"])
def test_the_page_shows_all_of_sandbox_up(page: str, hub_leaf: Sandbox) -> None:
    """The block has every line, but for the folder, the ports and the version of the servers."""
    found = [printed for block in blocks(ROOT / page) for command, printed in block.commands if command == UP]

    assert [plain(text) for text in found] == [plain(f"{text_of(describe(hub_leaf))}\nRunning. Ctrl-C ends it.\n")]


def plain(text: str) -> str:
    """The text without what differs from run to run."""
    text = re.sub(r"(?m)^data: .*$", "data: FOLDER", text)
    return re.sub(r"nats-server [\d.]+", "nats-server VERSION", re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text))
