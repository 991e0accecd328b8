from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, name

_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    """Return the page without its code, in which brackets mean something else."""
    return _CODE.sub("", page.read_text(encoding="utf-8"))


@cache
def anchors(page: Path) -> set[str]:
    """Return the anchors of a page."""
    headings: list[str] = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {
        re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


def test_links_lead_somewhere() -> None:
    """Every relative link names a file that exists, and a heading in it if it names one."""
    broken = []
    for page in PAGES:
        for link in _LINK.findall(text_of(page)):
            target, _, anchor = link.partition("#")
            if "://" in target:
                continue
            file = (page.parent / target).resolve() if target else page
            if not file.exists() or (anchor and anchor not in anchors(file)):
                broken.append((name(page), link))

    assert [] == broken


def test_every_page_of_the_site_can_be_found() -> None:
    """Each page under docs is in the navigation, or is linked from one that is."""
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(text_of(page))
    }
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [
        page
        for page in (ROOT / "docs").rglob("*.md")
        if page.relative_to(ROOT / "docs").as_posix() not in navigation
    ]

    assert [] == [name(page) for page in pages if page not in linked]


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_every_how_to_is_listed(start: str) -> None:
    """README and the start page of the site lead to every how-to."""
    listed = {link.rpartition("/")[2] for link in _LINK.findall(text_of(ROOT / start))}

    assert {page.name for page in (ROOT / "docs/how-to").glob("*.md")} - listed == set()
