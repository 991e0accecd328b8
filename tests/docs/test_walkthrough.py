"""Plays the pages that lead a reader step by step, on real servers. README is played in `tests/install`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.walk import Walk, play

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox


PAGES = ["tutorial.md", "tutorial-adopt.md", "how-to/environments.md", "how-to/rename-or-split-a-stream.md"]


@pytest.mark.parametrize("page", [f"docs/{page}" for page in PAGES])
def test_what_the_page_shows_is_what_is_printed(page: str, clean_hub_leaf: Sandbox, tmp_path: Path) -> None:
    """Each command on the page prints, on real servers, what the page says that it prints."""
    play(Walk(tmp_path, {name: clean_hub_leaf[name].url for name in ("hub", "leaf")}), page)
