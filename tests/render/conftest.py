"""Golden texts: each view is compared with a file that people have read.

JSPLAN_GOLDEN=1 writes the files again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jsplan.config import excerpts
from tests.render.texts import Compare, View, text_of

GOLDEN = Path(__file__).parent / "golden"
#: Read once: the tests themselves run without the developer's environment.
WRITE = bool(os.environ.get("JSPLAN_GOLDEN"))


@pytest.fixture(autouse=True)
def no_files() -> None:
    """Findings show no line of a workspace that another test has read in this process."""
    excerpts.forget_all()


@pytest.fixture
def golden() -> Compare:
    """Compare what a view prints with `golden/<name>.txt`."""

    def compare(name: str, view: View) -> str:
        text, file = text_of(view), GOLDEN / f"{name}.txt"
        if WRITE:
            file.write_text(text)
        assert text == file.read_text(), (
            f"{file.name} differs; look at it, then JSPLAN_GOLDEN=1 pytest tests/render"
        )
        return text

    return compare
