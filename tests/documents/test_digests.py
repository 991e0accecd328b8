"""Digests of large documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from jsplan.documents.base import digest, digest_large
from tests.support.workspaces import single_space

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Server


@pytest.mark.parametrize(
    "document",
    [{}, {"b": [], "a": {}}, {"ü": [{"b": 1, "a": None}, [2, "x"]], "B": "é", "a": [1]}],
)
def test_a_large_document_has_the_same_digest(document: dict[str, object]) -> None:
    """A document that is encoded in parts has the digest of the whole, also with iterators."""
    lazy = {
        name: iter(value) if isinstance(value, list) else value for name, value in document.items()
    }
    assert digest_large(document) == digest(document) == digest_large(lazy)


def test_the_digest_of_a_plan_is_that_of_its_document(tmp_path: Path, server: Server) -> None:
    """The digest that the history has is the `sha256` of the plan's document."""
    plan = single_space(tmp_path, server).write(streams=[{"name": "A"}, {"name": "B"}]).plan()
    assert plan.compute_sha256() == plan.to_json()["sha256"]
