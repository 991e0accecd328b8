"""The parts of a field table, and the normalisation that needs nothing else.

Two forms of a configuration are used everywhere:

- *raw*: the JSON object as the server gave it or as it will be sent; - *compact*: without `_nats.*`
metadata and without every value that equals the server's default. Two raw configurations mean the
same exactly when their compact forms are equal (server_semantics 1.2).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from jsplan import units
from jsplan.diagnostics import did_you_mean
from jsplan.resources.server_features import NEWEST_LEVEL

Config = dict[str, Any]
Effect = Literal["in_place", "one_way", "replace", "ignored"]
Type = Literal[
    "string", "bool", "int", "duration", "size", "enum", "time", "percent",
    "strings", "durations", "metadata", "object", "objects",
]  # fmt: skip


class _Absent:
    """The server omits the field."""

    def __repr__(self) -> str:
        return "ABSENT"

    def __bool__(self) -> bool:
        return False


ABSENT: Final = _Absent()
#: The metadata key of the owner tag (`ownership: {marker: true}`).
OWNER_KEY: Final = "jsplan.owner"
#: The server's format of a percentage; it accepts more than 100.
PERCENT_PATTERN: Final = r"\+?[0-9]{1,18}%?"


class FieldUpdate(Struct, frozen=True):
    """The input of an update rule: one top-level field and the compact configurations around it."""

    before: Any
    after: Any
    old: Config
    new: Config
    level: int


UpdateRule = Callable[[FieldUpdate], Effect]


def update_in_place(_: FieldUpdate) -> Effect:
    """The server accepts the change and keeps all data."""
    return "in_place"


def require_replacement(_: FieldUpdate) -> Effect:
    """The server refuses the change: it needs a new object."""
    return "replace"


def ignore_change(_: FieldUpdate) -> Effect:
    """The server accepts the change and ignores it."""
    return "ignored"


def turn_on_only(change: FieldUpdate) -> Effect:
    """The field can be turned on and never off again."""
    return "one_way" if change.after else "replace"


class Field(Struct, frozen=True):
    """One row of a table.

    `default` is what the server uses if the field is omitted: a value, ABSENT, or None if it
    depends on the rest of the configuration (then the table's `fill_derived` fills it in). `level`
    is the API level that knows the field, by `SERVER_VERSIONS` in `resources/server_features.py`.
    `value_levels` are values that need a higher level than the field itself.

    `unlimited` fields take 0 and less as -1. `unordered` lists are sets to the server. `echoed`:
    the server always shows it, also at its default. `operational` fields change at run time, by
    people and clients: they are compared only if the file has them. `when_omitted` is the meaning
    of an omitted field of an existing object: the server's default, the last applied value (the
    live value, when it is adopted), or always the live value. `floor`: the server takes every lower
    value for this one, as a negative time for none; it is written so that older servers, which keep
    or refuse it, agree. `normalize` maps other spellings of a word to the server's. `like_omitted`
    is a value that the server keeps, and that means the same as an omitted field.
    """

    name: str
    type: Type
    doc: str
    default: Any = ABSENT
    values: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    floor: int | None = None
    pattern: str | None = None
    max_length: int | None = None
    required: bool = False
    level: int = 0
    unlimited: bool = False
    unordered: bool = False
    echoed: bool = False
    operational: bool = False
    when_omitted: Literal["default", "last", "live"] = "default"
    value_levels: Mapping[str, int] = msgspec.field(default_factory=dict)
    normalize: Callable[[str], str] = str
    like_omitted: Any = None
    table: Table | None = None
    update: UpdateRule = update_in_place

    @property
    def _zero_is_default(self) -> bool:
        """True if 0 equals an omitted field: dependent defaults and counts of at least one."""
        return self.default is None or self.default == 1

    def parse(self, value: Any) -> Any:
        """Parse a value from a file to API units; ValueError says what is allowed.

        The caller parses nested tables: it knows the place of each key.
        """
        return _PARSERS[self.type](self, value)

    def compact(self, value: Any) -> Any:
        """Return the value in compact form, or ABSENT if it equals an omitted field."""
        value = _COMPACT.get(self.type, _unchanged)(self, value)
        if isinstance(value, bool):
            return value or ABSENT
        if value in (self.default, self.like_omitted):
            return ABSENT
        if value or (value == 0 and not self._zero_is_default):
            return value
        return ABSENT


class Table(Struct, frozen=True, eq=False, dict=True):
    """All rows of one kind of object. `fill_derived(config, level)` fills in dependent fields.

    `refuses_updates(old, new)`: the server refuses every update between the two, also of a field
    that changes in place otherwise.
    """

    kind: str
    rows: tuple[Field, ...]
    fill_derived: Callable[[Config, int], None] = lambda config, level: None
    refuses_updates: Callable[[Config, Config], bool] = lambda old, new: False

    @cached_property
    def by_name(self) -> Mapping[str, Field]:
        """Rows by field name."""
        return {row.name: row for row in self.rows}

    @cached_property
    def derived(self) -> frozenset[str]:
        """Fields whose default depends on the rest of the configuration."""
        return frozenset(row.name for row in self.rows if row.default is None)

    @cached_property
    def _default_values(self) -> Mapping[str, Any]:
        """The usual values: a fast path of `compact`, which large plans take a million times."""
        static = {
            row.name: row.default
            for row in self.rows
            if row.default is not None and row.default is not ABSENT
        }
        return static | {row.name: False for row in self.rows if row.type == "bool"}

    @cached_property
    def _texts(self) -> frozenset[str]:
        """Fields whose text is its own compact form unless it is empty: another fast path."""
        return frozenset(
            row.name for row in self.rows if row.type not in _COMPACT and row.like_omitted is None
        )

    def compact(self, raw: Config) -> Config:
        """Return the compact form. Unknown fields are kept, so that they survive and compare."""
        rows, rests, texts, out = self.by_name, self._default_values, self._texts, {}
        for name, value in raw.items():
            if rests.get(name, ABSENT) == value:
                continue
            if name in texts and type(value) is str and value:
                out[name] = value
                continue
            row = rows.get(name)
            shown = value if row is None else row.compact(value)
            if shown is not ABSENT and shown is not None:
                out[name] = shown
        return out

    def with_defaults(self, compact: Config, level: int = NEWEST_LEVEL) -> Config:
        """Return the compact form with the defaults that a server of the level always shows.

        The order is that of the table.
        """
        out: Config = {}
        for row in self.rows:
            if row.name in compact:
                out[row.name] = _value_with_defaults(row, compact[row.name], level)
            elif row.echoed and row.level <= level:
                out[row.name] = row.default
        return out | {name: value for name, value in compact.items() if name not in out}

    def required_levels(self, config: Config) -> Iterator[tuple[str, int]]:
        """Yield each field that is not at its default, as a dotted path, with its API level."""
        for name, value in config.items():
            row = self.by_name.get(name)
            if row is None or value is None or row.compact(value) is ABSENT:
                continue
            yield (
                name,
                max(row.level, row.value_levels.get(value, 0) if isinstance(value, str) else 0),
            )
            if row.table is not None:
                for item in value if row.type == "objects" else [value]:
                    yield from (
                        (f"{name}.{path}", level) for path, level in row.table.required_levels(item)
                    )

    def default_of(self, name: str) -> Any:
        """Return what the server shows for an omitted field; None if absent or dependent."""
        row = self.by_name.get(name)
        return None if row is None or row.default is ABSENT else row.default


def strip_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Return metadata without the server's `_nats.*` keys and without our owner tag.

    Every server upgrade changes the `_nats.*` keys.
    """
    return {
        key: value
        for key, value in metadata.items()
        if not key.startswith("_nats.") and key != OWNER_KEY
    }


# --- compact forms --------------------------------------------------------------------------------


def _unchanged(_: Field, value: Any) -> Any:
    return value


def _compact_int(row: Field, value: Any) -> Any:
    if not isinstance(value, int):
        return value
    return -1 if row.unlimited and value <= 0 else _at_least_floor(row, value)


def _at_least_floor(row: Field, value: int) -> int:
    return value if row.floor is None else max(row.floor, value)


def _compact_list(row: Field, value: Any) -> Any:
    return sorted(value) if row.unordered and value else value


def _compact_object(row: Field, value: Any) -> Any:
    return row.table.compact(value) if row.table and value else ABSENT


def _compact_objects(row: Field, value: Any) -> Any:
    assert row.table is not None
    out = [row.table.compact(item) for item in value or ()]
    return sort_objects(out) if row.unordered else out


def sort_objects(items: list[Config]) -> list[Config]:
    """Sort a set of objects in the order of its compact form."""
    return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))


def _value_with_defaults(row: Field, value: Any, level: int) -> Any:
    if row.table is None:
        return value
    if row.type == "objects":
        return [row.table.with_defaults(item, level) for item in value]
    return row.table.with_defaults(value, level)


def _compact_time(_: Field, value: Any) -> Any:
    return units.normalize_time(value) if value else ABSENT


_COMPACT: dict[str, Callable[[Field, Any], Any]] = {
    "int": _compact_int,
    "size": _compact_int,
    "duration": _compact_int,
    "strings": _compact_list,
    "object": _compact_object,
    "objects": _compact_objects,
    "metadata": lambda _, value: strip_metadata(value or {}),
    "time": _compact_time,
}


# --- values from files ----------------------------------------------------------------------------


def _parse_string(row: Field, value: Any) -> Any:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {_describe_value(value)}")
    if row.max_length is not None and (size := len(value.encode())) > row.max_length:
        raise ValueError(f"is {size} bytes long; the server takes at most {row.max_length}")
    if row.pattern is not None and not _compile(row.pattern).fullmatch(value):
        raise ValueError(
            f'"{value}" is not allowed here; a name has no dots, blanks, slashes or wildcards'
        )
    return value


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _parse_bool(_: Field, value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {_describe_value(value)}")
    return value


def _parse_int(row: Field, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"must be a whole number, not {_describe_value(value)}")
    return _require_range(row, value)


def _require_range(row: Field, value: int) -> int:
    if row.minimum is not None and value < row.minimum:
        raise ValueError(f"is {value}; it must be at least {row.minimum}")
    if row.maximum is not None and value > row.maximum:
        raise ValueError(f"is {value}; it can be at most {row.maximum}")
    return _at_least_floor(row, value)


def _parse_enum(row: Field, value: Any) -> Any:
    word = row.normalize(value) if isinstance(value, str) else value
    if word not in row.values:
        meant = did_you_mean(str(value).lower(), row.values)
        raise ValueError(
            f"is {_describe_value(value)}; it can be {', '.join(row.values)}{meant and f'.{meant}'}"
        )
    return word


def _parse_percent(_: Field, value: Any) -> Any:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if not re.fullmatch(PERCENT_PATTERN, text) and value != "":
        raise ValueError(f"is {_describe_value(value)}; it is a percentage such as 100 or 30%")
    return text


def _parse_list(parse_item: Callable[[Any], Any], what: str) -> Callable[[Field, Any], Any]:
    def parse(_: Field, value: Any) -> Any:
        if not isinstance(value, list):
            raise ValueError(f"must be a list of {what}, not {_describe_value(value)}")
        return [parse_item(item) for item in value]

    return parse


def _parse_list_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must hold text only, not {_describe_value(value)}")
    return value


def _parse_wait(value: Any) -> int:
    found = units.parse_duration(value)
    if found < 0:
        raise ValueError(f"holds {found}; a time cannot be negative")
    return found


def _parse_metadata(_: Field, value: Any) -> Any:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError("must map text to text; put numbers and dates in quotes")
    return strip_metadata(value)


def _describe_value(value: Any) -> str:
    names = {
        bool: "the boolean",
        int: "the number",
        float: "the number",
        str: "the text",
        list: "a list",
        dict: "a mapping",
    }
    if value is None:
        return "nothing"
    shown = (
        f'"{value}"'
        if isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else value
    )
    return names[type(value)] if isinstance(value, list | dict) else f"{names[type(value)]} {shown}"


_PARSERS: dict[str, Callable[[Field, Any], Any]] = {
    "string": _parse_string,
    "bool": _parse_bool,
    "int": _parse_int,
    "duration": lambda row, value: _require_range(row, units.parse_duration(value)),
    "size": lambda row, value: _require_range(row, units.parse_size(value)),
    "enum": _parse_enum,
    "time": lambda _, value: units.normalize_time(value),
    "percent": _parse_percent,
    "strings": _parse_list(_parse_list_text, "text"),
    "durations": _parse_list(_parse_wait, "durations"),
    "metadata": _parse_metadata,
    "object": _unchanged,
    "objects": _unchanged,
}
