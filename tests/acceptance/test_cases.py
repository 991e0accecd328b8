"""Every file under tests/cases, on a real hub and leaf. A new file is a new case."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.acceptance.case_runner import CASES, Case
from tests.support.raw import Raw
from tests.support.yaml_text import read_yaml

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

FILES = sorted(CASES.rglob("*.yaml"))


@pytest.mark.matrix
@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(CASES)))
def test_case(path: Path, tmp_path: Path, clean_hub_leaf: Sandbox) -> None:
    """A case has the expected changes, hazards and live fields, and an empty second plan."""
    hub = clean_hub_leaf["hub"]
    with Raw(hub.url, hub.user, hub.password) as raw:
        level = raw.api_level()
    text = read_yaml(path.read_text("utf-8"))
    if not text.get("level", 0) <= level < text.get("below", level + 1):
        return  # this server does not know what the case is about; test-matrix runs it on one that does
    Case.load(path, tmp_path, clean_hub_leaf).run()


def test_every_case_says_what_it_expects() -> None:
    """Every case has a sentence and at least one expectation."""
    texts = {path: read_yaml(path.read_text("utf-8")) for path in FILES}

    assert len(texts) >= 40
    assert [
        str(p) for p, text in texts.items() if not text.get("about") or "expect" not in text
    ] == []
