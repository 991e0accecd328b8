"""The tables of the keys of a workspace file: reader, schema and page agree on each row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import jsonschema

from jsplan.config.workspace_schema import all_sections, workspace_schema
from jsplan.errors import ConfigError
from jsplan.resources import TABLES
from tests.config.conftest import Loader, placed
from tests.support.yaml_text import read_yaml

_VALIDATOR: Final = jsonschema.Draft202012Validator(workspace_schema())
_BASE: Final[dict[str, Any]] = {
    "jsplan": 1,
    "workspace": "shop",
    "connections": {"n": {"url": "nats://h:4222"}},
    "domains": {"hub": {"connection": "n"}, "leaf": {"connection": "n"}},
    "defaults": {"domain": "hub"},
}
_EXAMPLES: Final[dict[str, dict[str, Any]]] = read_yaml(
    Path(__file__).with_name("key_examples.yaml").read_text("utf-8")
)


def _is_read(workspace: Loader, document: dict[str, Any]) -> bool:
    try:
        chosen = next(iter(document.get("environments", {})), None)
        files = {"a.txt": "1", "folder/b": "2", "a.json": "{}"}
        workspace(json.dumps(document), head="", files=files, environment=chosen)
    except ConfigError:
        return False
    return True


def test_reader_and_schema_take_the_same_keys(workspace: Loader) -> None:
    """Both take each key of each table with a real value, and refuse any other key."""
    assert _EXAMPLES.keys() == all_sections().keys()
    for name, section in all_sections().items():
        place, examples = _EXAMPLES[name].values()
        given = {key for example in examples for key in example}
        assert (
            given - {row.name for kind in section.fields for row in TABLES[kind].rows}
            == section.by_name.keys()
        ), name
        for example in examples:
            document = _BASE | placed(place, example)
            assert list(_VALIDATOR.iter_errors(document)) == [], (name, example)
            assert _is_read(workspace, document), (name, example)
            unknown = _BASE | placed(place, example | {"no_such_key": 1})
            assert not _VALIDATOR.is_valid(unknown), (name, example)
            assert not _is_read(workspace, unknown), (name, example)


def test_reader_and_schema_require_the_same_keys(workspace: Loader) -> None:
    """Both refuse a mapping without one of its required keys."""
    for name, section in all_sections().items():
        place, examples = _EXAMPLES[name].values()
        for key in section.keys:
            if key.required:
                less = {given: value for given, value in examples[0].items() if given != key.name}
                document = _BASE | placed(place, less)
                assert not _VALIDATOR.is_valid(document), (name, key.name)
                assert not _is_read(workspace, document), (name, key.name)
