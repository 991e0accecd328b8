"""Documents that are accepted without the library of JSON Schema fit their schema."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsplan.documents.acceptance import compile_acceptance
from jsplan.documents.validation import _compile_acceptance, _compile_check
from tests.documents import valid_documents
from tests.support.mutations import mutate

#: Documents by the name of their schema.
DOCUMENTS: Final[dict[str, list[Any]]] = {
    "backup": [valid_documents.MANIFEST],
    "commit": [valid_documents.COMMIT],
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_valid_documents_are_accepted(name: str) -> None:
    """A valid document never needs the library."""
    accept = _compile_acceptance(name)
    assert [accept(document) for document in DOCUMENTS[name]] == [True] * len(DOCUMENTS[name])


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_is_accepted_is_valid(name: str, seed: int) -> None:
    """The library finds no flaw in a mutated document that is accepted."""
    random = Random(seed)
    document = mutate(random.choice(DOCUMENTS[name]), random)
    if _compile_acceptance(name)(document):
        _compile_check(name)(document)


def test_an_unknown_keyword_accepts_nothing() -> None:
    """A keyword that is not known leaves the decision to the library."""
    assert compile_acceptance({"type": "integer"})(4)
    assert not compile_acceptance({"type": "integer", "multipleOf": 2})(4)
    assert not compile_acceptance({"type": "string", "pattern": "^a$"})("a")
