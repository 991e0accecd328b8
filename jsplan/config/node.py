"""A value with its place in a file: the output of reading, used by every module here."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from jsplan.diagnostics import SourceRange


class Source(Struct, frozen=True):
    """One file, or the command line; `shown` is its name in findings.

    `lines_before` is how many lines come before it, where it is a part of the file.
    """

    path: Path
    shown: str
    lines_before: int = 0

    @classmethod
    def of(cls, path: Path, name: str) -> Source:
        """Return a file under a name for people, with `/`.

        Bytes that are not UTF-8, which no document could hold, are escaped.
        """
        return cls(path, name.replace(os.sep, "/").encode("utf-8", "backslashreplace").decode())


#: Source, line, column; both count from 0, as libyaml does.
Place = tuple[Source, int, int]


class Node:
    """One value. `value` is a scalar, a list of nodes, or a dict of nodes by key.

    `keys` has the places of the keys. `raw` is the text of a scalar as written. `dynamic`: `${`
    occurs in it or below it. `secret`: it came from `${env.X}` or is a password, and must not be
    shown. `references`: the text to show for each value of the environment in it, `${env.X}`.
    `template`: the text in which `${env.X}` is still a reference, if there is one in it.
    `unknown`: it is in the files and has no value here, because a reference in it has none.
    """

    __slots__ = (
        "dynamic",
        "keys",
        "place",
        "raw",
        "references",
        "secret",
        "template",
        "unknown",
        "value",
    )

    def __init__(self, place: Place, value: Any, raw: str | None = None) -> None:
        self.place = place
        self.value = value
        self.raw = raw
        self.keys: dict[str, Place] = _NO_KEYS
        self.dynamic = False
        self.secret = False
        self.references: Mapping[str, str] = _NO_REFERENCES
        self.template = ""
        self.unknown = False

    def get(self, key: str) -> Node | None:
        """Return the node below a key of a mapping; None for anything else."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def get_value(self, key: str) -> Any:
        """Return the value below a key of a mapping; None for anything else."""
        found = self.get(key)
        return found.value if found is not None else None

    def is_given(self, key: str) -> bool:
        """Check whether a key of a mapping has a value in the files, known or not."""
        found = self.get(key)
        return found is not None and (found.value is not None or found.unknown)

    def key_place(self, key: str) -> Place:
        """Return where a key of this mapping is written."""
        return self.keys.get(key, self.place)


_NO_KEYS: dict[str, Place] = {}
_NO_REFERENCES: Mapping[str, str] = {}


def make_unknown(place: Place) -> Node:
    """Build the node of a value that is unknown."""
    node = Node(place, None)
    node.unknown = node.secret = True
    return node


def has_unknown(node: Node) -> bool:
    """Check whether a value or a part of it is unknown."""
    return node.unknown or any(map(has_unknown, children(node)))


def children(node: Node) -> Collection[Node]:
    """Return the values in a mapping or a list; none for anything else."""
    value = node.value
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def make_mapping(place: Place, values: Mapping[str, Node], keys: Mapping[str, Place]) -> Node:
    """Build a mapping from parts of others."""
    node = Node(place, dict(values))
    node.keys = dict(keys)
    node.dynamic = any(value.dynamic for value in values.values())
    return node


def without_keys(node: Node, keys: Collection[str]) -> Node:
    """Return the mapping without these keys; the same node if it has none of them."""
    if node.value.keys().isdisjoint(keys):
        return node
    return make_mapping(
        node.place, {key: item for key, item in node.value.items() if key not in keys}, node.keys
    )


def count_values(node: Node) -> int:
    """Count the values, with every alias expanded."""
    return 1 + sum(map(count_values, children(node)))


def to_plain(node: Node) -> Any:
    """Return the value without places."""
    value = node.value
    if isinstance(value, list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return value


def from_plain(value: Any, place: Place) -> Node:
    """Reverse `to_plain`: everything is at the one place."""
    if isinstance(value, list):
        return Node(place, [from_plain(item, place) for item in value])
    if isinstance(value, dict):
        return make_mapping(
            place,
            {key: from_plain(item, place) for key, item in value.items()},
            dict.fromkeys(value, place),
        )
    return Node(
        place,
        value,
        value
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value),
    )


def source_range(place: Place) -> SourceRange:
    """Return the place as findings show it, counting from 1."""
    source, line, column = place
    return SourceRange(source.shown, source.lines_before + line + 1, column + 1)


def type_name(node: Node) -> str:
    """Return the type of a value, for messages that must not quote it."""
    value = node.value
    if isinstance(value, str):
        return "text"
    if value is None or isinstance(value, list | dict):
        return describe_node(node)
    return "a number or a boolean"


def describe_node(node: Node) -> str:
    """Describe a value for messages, without secrets."""
    value = node.value
    if node.secret:
        return "a secret value"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return f'the text "{value}"'
    return f"{'the boolean' if isinstance(value, bool) else 'the number'} {node.raw}"


class FieldPlaces(Mapping[str, SourceRange]):
    """The place of each field of a resource, computed on demand: most are never used."""

    __slots__ = ("_layers",)

    def __init__(self, layers: tuple[Node, ...]) -> None:
        self._layers = layers  # the highest precedence last

    @property
    def layers(self) -> tuple[Node, ...]:
        """Every layer of the resource, the highest precedence last."""
        return self._layers

    def __getitem__(self, name: str) -> SourceRange:
        for layer in reversed(self._layers):
            if name in layer.value:
                return source_range(layer.key_place(name))
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({name: None for layer in self._layers for name in layer.value})

    def __len__(self) -> int:
        return sum(1 for _ in self)
