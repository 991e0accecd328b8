from __future__ import annotations

import io
import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from jsplan.applying.saved_plan import require_consistent_steps
from jsplan.backfill.parquet.manifest import Archive
from jsplan.backfill.parquet.store import LocalFolder
from jsplan.backup.folder import find_damage, read_manifest
from jsplan.backup.manifest import summarize
from jsplan.documents import reading
from jsplan.documents.base import digest, dumps, parse
from jsplan.documents.lock import Lock
from jsplan.documents.plan import Plan
from jsplan.errors import JsplanError, StateError
from jsplan.history import with_changes
from jsplan.invisible_characters import INVISIBLE_IN_JSON
from jsplan.planning.backfill.entries import list_past_copies
from jsplan.render import plan_html, plan_markdown, plan_text
from jsplan.state import State, document
from jsplan.state.bucket import KeyRevision
from jsplan.state.lease import parse_holder
from jsplan.state.parts import PartsHead, join_parts, read_head
from tests.documents import valid_documents
from tests.fuzz.changes import changed_json
from tests.support.wrong_values import nested_lists

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Changed documents of each kind. `make soak` has the large suite.
ROUNDS = 150


def with_checksum(document: dict[str, Any]) -> dict[str, Any]:
    """Return a plan whose checksum fits."""
    body = {key: value for key, value in document.items() if key != "sha256"}
    return body | {"sha256": digest(body).removeprefix("sha256:")}


def read_plan(data: bytes, _: Path) -> None:
    found = Plan.from_json(parse(data, "p.plan", "hint"), "p.plan")
    plan_html.render(found)
    plan_markdown.render(found)
    plan_text.render(found, Console(file=io.StringIO(), width=100))
    with suppress(JsplanError):
        require_consistent_steps(found)


def read_state(data: bytes, _: Path) -> None:
    found = State.parse(data, "the state")
    list_past_copies(found)
    for entry in found.history:
        with_changes(entry)
    assert State.parse(dumps(found.to_json()), "the state") == found


def read_parts(data: bytes, _: Path) -> None:
    head = read_head(data, "the state", "hint")
    if isinstance(head, PartsHead):
        join_parts(
            head,
            [b"x" for _, name in zip(range(5), head.part_names, strict=False)],
            "the state",
            "hint",
        )


def read_journal(data: bytes, _: Path) -> None:
    found = State("shop", None)
    lines: Any = parse(data, "j", "h")
    document.replay(
        found,
        b"\n".join(orjson.dumps(line) for line in (lines if isinstance(lines, list) else [lines]))
        + b"\n",
        "j",
        "h",
    )
    State.parse(dumps(found.to_json()), "the state")


def read_lock(data: bytes, _: Path) -> None:
    try:
        found = parse_holder(KeyRevision(1, data))
    except ValueError as error:
        raise StateError(str(error)) from None
    assert found is not None
    assert 0 < found[1] <= 1e10
    found[0].describe()


def read_changes(data: bytes, folder: Path) -> None:
    state = valid_documents.state()
    state["history"][0]["changes"] = parse(data, "c", "h")
    read_state(dumps(state), folder)


def read_backup(data: bytes, folder: Path) -> None:
    (folder / "manifest.json").write_bytes(data)
    found = read_manifest(folder)
    dumps(found.to_json())
    summarize(found.streams.values())
    for saved in found.streams.values():
        find_damage(folder, saved.archive)


def read_archive(data: bytes, folder: Path) -> None:
    log = folder / "_jsplan"
    log.mkdir(exist_ok=True)
    (log / "manifest-000001.json").write_bytes(data)
    found = Archive.read(LocalFolder(folder))
    with suppress(JsplanError):
        found.require_complete()


READERS: dict[str, tuple[Any, Callable[[bytes, Path], None]]] = {
    "plan": (valid_documents.plan(), read_plan),
    "state": (valid_documents.state(), read_state),
    "parts": (valid_documents.HEAD, read_parts),
    "journal": (valid_documents.JOURNAL, read_journal),
    "lock": (valid_documents.LOCK, read_lock),
    "changes": ([valid_documents.CHANGE], read_changes),
    "backup": (valid_documents.MANIFEST, read_backup),
    "archive": (valid_documents.ARCHIVE, read_archive),
}


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("parts", "archive")])
def test_documents_are_valid_before_a_change(kind: str, tmp_path: Path) -> None:
    """The documents that are changed are read without an error before."""
    document, read = READERS[kind]
    document = with_checksum(document) if kind == "plan" else document
    if kind == "plan":
        Plan.from_json(parse(dumps(document), "p.plan", ""), "p.plan")
    else:
        read(dumps(document), tmp_path)


@pytest.mark.parametrize("kind", READERS)
@settings(
    max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(given_data=st.data())
def test_a_changed_document(kind: str, given_data: st.DataObject, tmp_path: Path) -> None:
    """A changed document is read, or refused with an error of jsplan; no other exception."""
    document, read = READERS[kind]
    data = given_data.draw(changed_json(document))
    with suppress(orjson.JSONDecodeError, TypeError):
        if kind == "plan" and isinstance(found := orjson.loads(data), dict):
            data = dumps(with_checksum(found))
    with suppress(JsplanError):
        read(data, tmp_path)


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
