"""The pages on lint and graph show what is printed, and the pictures are of this release."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.cli.main import main
from tests.docs.pages import ROOT, blocks

if TYPE_CHECKING:
    from pathlib import Path

HOW_TO = ROOT / "docs" / "how-to"


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(list(words)) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", ["lint", "graph"])
def test_the_page_shows_what_is_printed(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The workspace of the page has the findings, or the Mermaid, of the page, to the letter."""
    files, printed = (
        next(b for b in blocks(HOW_TO / f"{command}.md") if b.language == language)
        for language in ("yaml", "text")
    )
    (tmp_path / files.title).write_text(files.text, encoding="utf-8")

    assert printed.text == f"$ jsplan {command}\n" + run(capsys, "-C", str(tmp_path), command)


def test_the_picture_is_of_this_release(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The picture docs/images/graph.svg is the current one of examples/edge-fleet.

    Else: jsplan -C examples/edge-fleet -e large graph --format svg.
    """
    monkeypatch.setenv("ACC_PASSWORD", "acc")
    picture = run(
        capsys,
        "-C",
        str(ROOT / "examples" / "edge-fleet"),
        "-e",
        "large",
        "graph",
        "--format",
        "svg",
    )

    assert (ROOT / "docs" / "images" / "graph.svg").read_text(encoding="utf-8") == picture
