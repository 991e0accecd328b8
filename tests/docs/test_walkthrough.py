"""Plays the step-by-step pages on real servers. README is played in `tests/install`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from jsplan.cli.commands.sandbox import render_text
from jsplan.sandbox.foreground import describe
from tests.docs.page_reader import PageReader, play_page
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

UP = "jsplan sandbox up"
PAGES = [
    "tutorial.md", "tutorial-adopt.md",
    "how-to/environments.md", "how-to/rename-or-split-a-stream.md", "how-to/troubleshooting.md",
]  # fmt: skip


@pytest.mark.parametrize("page", [f"docs/{page}" for page in PAGES])
def test_the_page_shows_what_is_printed(page: str, clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each command on the page prints what the page says."""
    play_page(
        PageReader(tmp_path, {name: clean_hub_leaf[name].url for name in ("hub", "leaf")}), page
    )


@pytest.mark.parametrize("page", ["docs/tutorial.md", "docs/tutorial-adopt.md"])
def test_the_page_shows_all_of_sandbox_up(page: str, hub_leaf: Sandbox) -> None:
    """The block has every line, but for the folder, the ports and the version of the servers."""
    found = [
        printed
        for block in blocks(ROOT / page)
        for command, printed in block.commands
        if command == UP
    ]

    assert [normalize_output(text) for text in found] == [
        normalize_output(f"{render_text(describe(hub_leaf))}\nRunning. Ctrl-C ends it.\n")
    ]


def normalize_output(text: str) -> str:
    """Return the text without what differs from run to run."""
    text = re.sub(r"(?m)^data: .*$", "data: FOLDER", text)
    return re.sub(
        r"nats-server [\d.]+", "nats-server VERSION", re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", text)
    )
