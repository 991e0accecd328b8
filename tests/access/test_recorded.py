"""The permissions for a client are those that its recorded requests need, and no more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from jsplan.subjects import is_subset
from tests.access.conftest import RECORDED_JAVA, derive, space_with

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("name", RECORDED_JAVA)
@pytest.mark.parametrize("verb", ["publish", "subscribe"])
def test_java(name: str, verb: Any, tmp_path: Path) -> None:
    """Each recorded subject is allowed, and each permission is for a recorded one."""
    recorded = RECORDED_JAVA[name]
    app = {"name": "a", "domain": "hub", "client": "java"} | recorded["app"]
    (found,) = derive(space_with(tmp_path, app))

    asked = recorded.get(verb, [])
    allowed = [p.text for p in found.allowed(verb) if not p.optional and p.text != "_INBOX_a.>"]

    assert [each for each in asked if not any(is_subset(each, p) for p in allowed)] == []
    assert [p for p in allowed if not any(is_subset(each, p) for each in asked)] == []
