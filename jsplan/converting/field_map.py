"""Tables of another tool's keys: the field of each, how to read its value, and its default.

The readers handle keys that do not map to one field, such as origins and some policies.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from jsplan import units
from jsplan.config.node import Node, describe_node, to_plain
from jsplan.converting.model import NoteWriter
from jsplan.diagnostics import did_you_mean
from jsplan.resources.fields import ABSENT
from jsplan.units import SECOND

Reader = Callable[[Node], Any]


class BadValue(ValueError):
    """A value of the wrong type; the message says what it should be."""


class MappedField(Struct, frozen=True):
    """One key of another tool.

    `default` is what the tool sends without it, in API units; `empty_values` mean to send nothing.
    """

    field: str
    read: Reader
    default: Any = ABSENT
    empty_values: tuple[Any, ...] = (None,)


FieldMap = Mapping[str, MappedField]


def convert_fields(
    node: Node,
    field_map: FieldMap,
    notes: NoteWriter,
    *,
    special_keys: Collection[str] = (),
    defaults: bool = True,
) -> dict[str, Any]:
    """Convert the keys of a mapping to fields. The caller reads `special_keys` itself.

    With `defaults`, the result has what the tool sends for omitted keys. An unknown key is a note.
    Raises BadValue for anything but a mapping.
    """
    if not isinstance(node.value, dict):
        raise BadValue(f"must be a mapping, not {describe_node(node)}")
    out: dict[str, Any] = (
        {
            mapped.field: mapped.default
            for mapped in field_map.values()
            if mapped.default is not ABSENT
        }
        if defaults
        else {}
    )
    for name, value in node.value.items():
        if name in special_keys:
            continue
        mapped = field_map.get(name)
        if mapped is None:
            notes.not_converted(
                node.key_place(name),
                f'"{name}" is not carried over: this release does not know it',
                did_you_mean(name, field_map).strip()
                or "If the server knows it, write it under `x_raw`.",
            )
        elif value.value not in mapped.empty_values:
            _convert_value(out, mapped, name, value, notes)
    return out


def _convert_value(
    out: dict[str, Any], mapped: MappedField, name: str, value: Node, notes: NoteWriter
) -> None:
    try:
        out[mapped.field] = mapped.read(value)
    except ValueError as error:
        notes.unreadable(value, f'"{name}": {error}', "Correct the value, or take it out.")


# --- values ---------------------------------------------------------------------------------------


def text(node: Node) -> str:
    """Read text; a number or a boolean where the other tool accepts them as text."""
    if isinstance(node.value, bool | int | float):
        return (
            str(node.value).lower() if isinstance(node.value, bool) else str(node.raw or node.value)
        )
    if not isinstance(node.value, str):
        raise BadValue(f"must be text, not {describe_node(node)}")
    return node.value


def integer(node: Node) -> int:
    """Read a whole number, also written as text or with `.0`."""
    value = node.value
    if isinstance(value, str) and value.lstrip("-").isdigit():
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadValue(f"must be a whole number, not {describe_node(node)}")
    return value


def flag(node: Node) -> bool:
    """Read true or false."""
    if node.value in ("true", "false"):
        return bool(node.value == "true")
    if not isinstance(node.value, bool):
        raise BadValue(f"must be true or false, not {describe_node(node)}")
    return node.value


def texts(node: Node) -> list[str]:
    """Read a list of text."""
    if not isinstance(node.value, list):
        raise BadValue(f"must be a list of text, not {describe_node(node)}")
    return [text(item) for item in node.value]


def text_map(node: Node) -> dict[str, str]:
    """Read a mapping of text to text."""
    if not isinstance(node.value, dict):
        raise BadValue(f"must map text to text, not {describe_node(node)}")
    return {key: text(item) for key, item in node.value.items()}


def any_value(node: Node) -> Any:
    """Return the value unchanged."""
    return to_plain(node)


def seconds(node: Node) -> int:
    """Read whole seconds, as ns; a negative number is 0."""
    return max(0, integer(node)) * SECOND


def go_duration(node: Node) -> int:
    """Read a duration as Go writes it (`24h`, `1m30s`), as ns; a bare number is ns."""
    value = node.value
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise BadValue(f"must be a duration such as 24h, not {describe_node(node)}")
    return units.parse_duration(value)


def percent(node: Node) -> str:
    """Read a share in percent, as the client library of Go writes it."""
    return f"{text(node).removesuffix('%')}%"


def read_items(node: Node) -> list[Node]:
    """Return the elements of a list."""
    if not isinstance(node.value, list):
        raise BadValue(f"must be a list, not {describe_node(node)}")
    return node.value


def list_of(read: Reader) -> Reader:
    """Return a reader of a list of such values."""

    def read_list(node: Node) -> list[Any]:
        return [read(item) for item in read_items(node)]

    return read_list


def one_of(choices: Mapping[str, str]) -> Reader:
    """Return a reader of a word that the server spells differently."""

    def read_choice(node: Node) -> str:
        if not isinstance(node.value, str) or node.value not in choices:
            raise BadValue(f"is {describe_node(node)}; it can be {', '.join(choices)}")
        return choices[node.value]

    return read_choice
