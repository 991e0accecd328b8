"""YAML as people write it: an entry on a line if it fits, else a line per field.

Text is quoted if it could be read otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import yaml

from jsplan import units
from jsplan.config.interpolate import escape
from jsplan.config.read import resolve
from jsplan.resources.fields import Field, Table
from jsplan.resources.nested import ORIGIN

_NUMBER: Final = re.compile(r"0|[1-9][0-9]{0,8}")
_SIZES: Final = [(name, factor) for name, factor in units.SIZES.items() if name.endswith("iB")]


def format_fields(table: Table, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one object in the order of its table, unknown ones last."""
    known = {row.name: format_value(row, body[row.name]) for row in table.rows if row.name in body}
    if table is ORIGIN and "domain" in body:
        known = {"name": body["name"], "domain": body["domain"]} | known
    return known | {
        name: escape_references(item) for name, item in body.items() if name not in known
    }


def format_value(row: Field, found: Any) -> Any:
    """Return one value in its shortest exact form."""
    if found is None or isinstance(found, bool):
        return found
    if row.table is not None and found:
        if row.type == "objects":
            return [format_fields(row.table, item) for item in found]
        return format_fields(row.table, found)
    if row.type == "duration" and isinstance(found, int):
        return units.format_duration(found)
    if row.type == "durations":
        return [units.format_duration(item) for item in found]
    if row.type == "size" and isinstance(found, int):
        return format_size(found)
    if row.type == "percent" and isinstance(found, str) and _NUMBER.fullmatch(found):
        return int(found)
    return escape_references(found)


def format_size(count: int) -> Any:
    """Return `10GiB` if a unit fits exactly, else bytes."""
    fitting = [
        f"{count // factor}{name}" for name, factor in _SIZES if count and count % factor == 0
    ]
    return fitting[-1] if fitting else count


def escape_references(found: Any) -> Any:
    """Escape `${` as `$${` in the value, keys included, so that it is not read as a reference."""
    return map_texts(escape, found, escape)


def map_texts(
    change: Callable[[str], str], found: Any, change_key: Callable[[str], str] = str
) -> Any:
    """Return a value with each text in it changed."""
    if isinstance(found, str):
        return change(found)
    if isinstance(found, list):
        return [map_texts(change, item, change_key) for item in found]
    if isinstance(found, Mapping):
        return {change_key(k): map_texts(change, v, change_key) for k, v in found.items()}
    return found


# --- the lines ------------------------------------------------------------------------------------

#: Columns of a line.
WIDTH: Final = 110
#: Text that no YAML reader mistakes; `_is_plain_text` finds text that only looks like text.
_PLAIN = re.compile(r"(label:)?[A-Za-z0-9_$][A-Za-z0-9_$./+%@-]*")
#: Words with blanks, as in descriptions.
_PLAIN_PHRASE = re.compile(r"[A-Za-z][A-Za-z0-9_./+-]*( [A-Za-z0-9_(][A-Za-z0-9_./+()-]*)+")
_ESCAPED = re.compile(
    "[^\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_NAMED_ESCAPES: Final = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
_RESOLVER: Any = yaml.resolver.Resolver()


def format_section(
    name: str, entries: Sequence[tuple[tuple[str, ...], Mapping[str, Any]]]
) -> Iterator[str]:
    """Yield the lines of a top-level list: each entry with the comments above it."""
    yield f"{name}:"
    for comment, entry in entries:
        yield from format_comments(comment, "  ")
        yield from _format_element(entry, "  ")


def format_comments(lines: Iterable[str], indent: str = "") -> Iterator[str]:
    """Yield comment lines; text with a line break stays within its comment."""
    yield from (f"{indent}# {' '.join(line.splitlines())}".rstrip() for line in lines)


def format_block(name: str, value: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    """Yield the lines of a mapping under a key."""
    yield f"{indent}{format_scalar(name)}:"
    for key, item in value.items():
        yield from _format_field(key, item, indent + "  ")


def _format_element(entry: Mapping[str, Any], indent: str) -> Iterator[str]:
    if (
        (len(entry) < 4 or "consumers" not in entry)
        and not any(_needs_block(value) for value in entry.values())
        and len(line := f"{indent}- {format_flow(entry)}") <= WIDTH
    ):
        yield line
        return
    first = f"{indent}- "
    for key, value in entry.items():
        for text in _format_field(key, value, indent + "  "):
            yield first + text[len(first) :] if first else text
            first = ""


def _format_field(key: str, value: Any, indent: str) -> Iterator[str]:
    if key == "consumers" or (
        isinstance(value, list) and any(isinstance(item, Mapping) for item in value)
    ):
        yield f"{indent}{format_scalar(key)}:"
        for item in value:
            yield from _format_element(item, indent + "  ")
        return
    line = f"{indent}{format_scalar(key)}: {format_flow(value)}"
    if len(line) <= WIDTH or not value or isinstance(value, str | int):
        yield line
    elif isinstance(value, Mapping):
        yield from format_block(key, value, indent)
    else:
        yield f"{indent}{format_scalar(key)}:"
        yield from (f"{indent}  - {format_flow(item)}" for item in value)


def _needs_block(value: Any) -> bool:
    """Check whether a value reads better on lines of its own."""
    return isinstance(value, list) and any(isinstance(item, Mapping) for item in value)


def format_flow(value: Any) -> str:
    """Return the value on one line."""
    if isinstance(value, Mapping):
        return (
            "{"
            + ", ".join(f"{format_scalar(key)}: {format_flow(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(format_flow(item) for item in value) + "]"
    return format_scalar(value)


def format_scalar(value: Any) -> str:
    """Return a scalar that every reader of YAML 1.1 and 1.2 understands in the same way."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return _format_text(value) if isinstance(value, str) else str(value)


@lru_cache
def _format_text(value: str) -> str:
    """Return text as a scalar; a file has the same keys thousands of times."""
    plain = (_PLAIN.fullmatch(value) or _PLAIN_PHRASE.fullmatch(value)) and _is_plain_text(value)
    return value if plain else f'"{_escape(value)}"'


def _is_plain_text(value: str) -> bool:
    """Check whether both versions of YAML read text: one of them does not for `on` or `010`."""
    return (
        isinstance(resolve(value), str)
        and _RESOLVER.resolve(yaml.ScalarNode, value, (True, False)) == "tag:yaml.org,2002:str"
    )


def _escape(value: str) -> str:
    def code(found: re.Match[str]) -> str:
        character = found[0]
        return _NAMED_ESCAPES.get(character) or (
            f"\\u{ord(character):04X}" if ord(character) < 0x10000 else f"\\U{ord(character):08X}"
        )

    return _ESCAPED.sub(code, value.replace("\\", "\\\\").replace('"', '\\"'))
