from __future__ import annotations

import re

import pytest

from jsplan.applying.operations import OPERATIONS as APPLIED
from jsplan.codes import CODES, FILE_CODES, LINT
from jsplan.codes.operations import OPERATIONS
from jsplan.codes.planning import PLANNING
from jsplan.documents.plan_parts import ParamsShape
from tests.docs.pages import ROOT
from tools import make_docs


@pytest.mark.parametrize("name", make_docs.pages())
def test_generated_pages_are_current(name: str) -> None:
    """The pages in docs/reference are what tools/make_docs.py writes; else: make docs-pages."""
    assert make_docs.pages()[name] == (make_docs.FOLDER / name).read_text(encoding="utf-8")


def test_the_specification_has_each_kind_of_step() -> None:
    """Each `op` of several requests, and each of `params`, is explained, and no other."""
    text = (ROOT / "state/SPEC.md").read_text(encoding="utf-8")
    section = text[text.index("A step that sends more than one request") :]
    steps, _, rest = section.partition("`params` has, depending on `op`:")
    params = rest.partition("`optional_if_offline` are")[0]

    named = set(re.findall(r"`([a-z_]+\.[a-z_]+)`", steps))
    ops = {each for each in named if not each.startswith(("params.", "reset."))}
    assert ops == {op for op in APPLIED if not op.startswith("state.")}
    assert set(ParamsShape.__annotations__) <= set(re.findall(r"`([a-z_]+)`", params))


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
