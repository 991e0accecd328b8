"""The pages on lint and graph show what is printed, and the pictures are of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.docs.pages import ROOT, blocks
from tests.support.process import jsplan

if TYPE_CHECKING:
    from pathlib import Path

HOW_TO = ROOT / "docs" / "how-to"


@pytest.mark.parametrize("command", ["lint", "graph"])
def test_the_page_shows_what_is_printed(command: str, tmp_path: Path) -> None:
    """The workspace of the page has the findings, or the Mermaid, of the page, to the letter."""
    files, printed = (
        next(b for b in blocks(HOW_TO / f"{command}.md") if b.language == language)
        for language in ("yaml", "text")
    )
    (tmp_path / files.title).write_text(files.text, encoding="utf-8")

    assert printed.text == f"$ jsplan {command}\n" + jsplan(tmp_path, command).out


def test_the_picture_is_of_this_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """The picture docs/images/graph.svg is the current one of examples/edge-fleet.

    Else: jsplan -C examples/edge-fleet -e large graph --format svg.
    """
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    folder = ROOT / "examples" / "edge-fleet"
    picture = jsplan(folder, "-e", "large", "graph", "--format", "svg").out

    assert (ROOT / "docs" / "images" / "graph.svg").read_text(encoding="utf-8") == picture
