from __future__ import annotations

import json

import orjson
import pytest

from jsplan.documents import reading
from jsplan.documents.base import dumps, parse
from jsplan.documents.lock import Lock
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError
from jsplan.invisible_characters import INVISIBLE_IN_JSON
from jsplan.state import State
from tests.documents import valid_documents
from tests.support.wrong_values import nested_lists


def test_a_document_that_is_nested_too_deeply() -> None:
    """A document that is nested too deeply is refused before any recursion."""
    for levels in (65, 900, 100_000):
        with pytest.raises(JsplanError, match="is damaged"):
            parse(b'{"x":' * levels + b"1" + b"}" * levels, "p.plan", "hint")
    assert parse(dumps(nested_lists(60)), "p.plan", "hint") == nested_lists(60)


@pytest.mark.parametrize("pretty", [True, False])
def test_invisible_characters_are_escaped(pretty: bool) -> None:
    """Printed JSON escapes invisible characters and keeps all other letters."""
    document = {
        "ORD\u200bERS": ["\x7f", "\x85", "\ufeff", "\U000e0041", "\u202e", "é 日本 \U0001f680"]
    }
    text = dumps(document, pretty=pretty).decode()
    assert orjson.loads(text) == document
    assert not INVISIBLE_IN_JSON.search(text)
    assert '"ORD\\u200bERS"' in text
    assert "é 日本 \U0001f680" in text


def test_errors_do_not_show_the_value() -> None:
    """An error of a document names the file and the place, but not the value."""
    secret = "hunter2" * 100
    for place, words in (
        ({"mode": secret}, "expected one of the values that are allowed at $.mode"),
        ({"timestamp": secret}, "expected a time in UTC at $.timestamp"),
        ({"complete": secret}, "expected true or false, got text at $.complete"),
        ({"steps": [{"id": secret}]}, 'expected the field "address" at $.steps[0]'),
        (
            {"domains": {"a": {"reachable": secret}}},
            "expected true or false, got text at $.domains['a'].reachable",
        ),
    ):
        flaw = reading.find_flaw(valid_documents.plan() | place, Plan) or ""
        assert flaw == words
        assert "hunter2" not in flaw


def test_numbers_with_a_fraction_are_no_counts() -> None:
    """A number with a fraction, such as 5.0, is refused for serials and sequences."""
    state = json.loads(dumps(valid_documents.state()))
    flaw = "expected a whole number, got a number at $.serial"
    assert reading.find_flaw(state | {"serial": 5.0}, State) == flaw
    assert reading.find_flaw(state | {"serial": 2**53}, State) is not None


def test_objects_without_fields() -> None:
    """An object with required fields is refused empty; one without them may be empty."""
    flaw = 'expected the field "id" at $.lock'
    assert reading.find_flaw(valid_documents.LOCK | {"lock": {}}, Lock) == flaw
    state = valid_documents.state() | {"pending": {}, "resources": {}, "history": []}
    assert reading.find_flaw(state, State) is None
    flaw = "expected an object, got a list at $.pending"
    assert reading.find_flaw(state | {"pending": []}, State) == flaw


def test_the_key_of_a_map_is_named() -> None:
    """The place of a flaw has the key of each map, and a wrong key itself."""
    state = json.loads(dumps(valid_documents.state()))
    address = "hub/stream/ORDERS"
    state["resources"] |= {f"hub/stream/S{n}": state["resources"][address] for n in range(9)}
    wrong = state["resources"][address] | {"config": {"metadata": {"a": "b", "c": 5}}}
    assert reading.find_flaw(
        state | {"resources": state["resources"] | {address: wrong}}, State
    ) == (
        "expected text, got a whole number at $.resources['hub/stream/ORDERS'].config.metadata['c']"
    )
    assert reading.find_flaw(
        state | {"resources": state["resources"] | {"hub/x": wrong}}, State
    ) == ("expected an address at $.resources['hub/x']")
