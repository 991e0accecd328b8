from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, blocks
from tools.make_demo_svg import IMAGES, run_demo


def normalize_output(text: str) -> list[str]:
    """Return the lines without ports and seconds, with simultaneous steps in one order."""
    lines = re.sub(
        r"127\.0\.0\.1:\d+|\(\d+\.\ds\)$|in \d+ s|in \d+\.\ds \([\d,]+/s\)",
        "·",
        text,
        flags=re.MULTILINE,
    ).splitlines()
    places = [number for number, line in enumerate(lines) if re.search(r": [a-z]+ ·$", line)]
    for number, line in zip(places, sorted(lines[number] for number in places), strict=True):
        lines[number] = line
    return lines


@pytest.mark.timeout(300)
def test_the_pictures_show_what_the_demo_prints() -> None:
    """`make demo` succeeds, and docs/images/demo.txt is its output; else: make demo-svg."""
    assert normalize_output((IMAGES / "demo.txt").read_text(encoding="utf-8")) == normalize_output(
        run_demo().plain
    )


def test_the_readme_shows_a_part_of_it() -> None:
    """The block of the README that names the demo is a part of what the demo prints."""
    shown = [block.text for block in blocks(ROOT / "README.md") if block.before == "<!-- demo -->"]

    assert 1 == len(shown)
    assert shown[0] in (IMAGES / "demo.txt").read_text(encoding="utf-8")
