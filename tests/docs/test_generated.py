from __future__ import annotations

import re

import pytest

from jsplan.codes import CODES, FILE_CODES, LINT
from jsplan.codes.operations import OPERATIONS
from jsplan.codes.planning import PLANNING
from tests.docs.pages import ROOT
from tools import make_docs


@pytest.mark.parametrize("name", make_docs.pages())
def test_generated_pages_are_current(name: str) -> None:
    """The pages in docs/reference are what tools/make_docs.py writes; else: make docs-pages."""
    assert make_docs.pages()[name] == (make_docs.FOLDER / name).read_text(encoding="utf-8")


def test_codes_are_in_order() -> None:
    """Codes are in ascending order."""
    text = make_docs.pages()["diagnostics.md"]
    for table in text.split("\n## ")[1:]:
        codes = re.findall(r"^\| (JS\d{3}) ", table, re.MULTILINE)
        assert codes == sorted(codes)


def test_every_code_is_explained() -> None:
    """The codes in the package are those of its tables, each in one table."""
    sources = [path for path in (ROOT / "jsplan").rglob("*.py") if path.parent.name != "codes"]
    used = {
        code
        for path in sources
        for code in re.findall(r'"(JS\d{3})"', path.read_text(encoding="utf-8"))
    }

    assert used == set(CODES)
    tables = (FILE_CODES, LINT, PLANNING, OPERATIONS)
    assert len(CODES) == sum(len(table) for table in tables)
