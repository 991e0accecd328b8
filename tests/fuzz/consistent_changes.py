"""Consistent changes of a whole document: a hostile name, and entries in metadata maps."""

from __future__ import annotations

import json
import re
from random import Random
from typing import Any, Final

from tests.fuzz import hostile_values
from tests.fuzz.documents import Document
from tests.fuzz.mutate import Mutator, copy_tree, json_text, parse_tree, places

#: A JSON string that is a value; and the characters around a name in a text of names.
_VALUE: Final = re.compile(rb'"([A-Za-z0-9_][A-Za-z0-9_./=: -]{0,60})"(?!\s*:)')
_EDGE: Final = '"/. @:'


def rename_value(
    document: Document, among: list[str], dice: Random, own: tuple[str, ...]
) -> Document:
    """Replace one value everywhere: in values, addresses, subjects and requests.

    So a hostile name gets past the checks that parts of the document agree.
    """
    known = sorted({match[1] for name in among for match in _VALUE.finditer(document[name])})
    if not known:
        return document
    old, new = dice.choice(known).decode(), Mutator(dice, own, hostile_values.RAW_JSON, []).text()
    escaped = json.dumps(new)[1:-1].encode()
    in_content = re.compile(f"(?<=[{_EDGE}]){re.escape(old)}(?=[{_EDGE}])".encode())
    in_name = re.compile(f"(?<=[{_EDGE}]){re.escape(old)}(?=[{_EDGE}])")
    named = {
        in_name.sub(lambda _: new, name) if name.startswith("$") else name: content
        for name, content in document.items()
    }
    return {
        name: content if name == "$" else in_content.sub(lambda _: escaped, content)
        for name, content in named.items()
    }


def fill_maps(document: Document, among: list[str], dice: Random, own: tuple[str, ...]) -> Document:
    """Add hostile entries to all maps of one name, such as metadata, whose keys are free."""
    trees = {
        name: tree for name in among if isinstance(tree := parse_tree(document[name], "json"), dict)
    }
    maps = {
        name: [(holder, key) for holder, key in places(tree) if _is_map(holder, key)]
        for name, tree in trees.items()
    }
    known = sorted({str(key) for map_places in maps.values() for _, key in map_places})
    if not known:
        return document
    wanted, mutator = dice.choice(known), Mutator(dice, own, hostile_values.RAW_JSON, [])
    more = {mutator.text(): mutator.text() for _ in range(3)}
    out = dict(document)
    for name, original in trees.items():
        tree = copy_tree(original)
        for holder, key in [
            place for place in places(tree) if place[1] == wanted and _is_map(*place)
        ]:
            holder[key] |= more
        out[name] = json_text(tree).encode()
    return out


def _is_map(holder: Any, key: Any) -> bool:
    value = holder[key]
    return (
        isinstance(holder, dict)
        and isinstance(value, dict)
        and bool(value)
        and all(isinstance(text, str) for text in value.values())
    )
