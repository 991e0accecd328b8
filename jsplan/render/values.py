"""Values as people read them: units instead of integers, lists as elements, by their field."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from jsplan import units
from jsplan.render.escape import quote_json, safe
from jsplan.resources import TABLES
from jsplan.resources.buckets import is_bucket, lift
from jsplan.resources.contents import CONTENTS
from jsplan.resources.nested import ORIGIN, origin_key
from jsplan.resources.server_features import NEWEST_LEVEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jsplan.address import Kind
    from jsplan.resources import Field, Table


_SEGMENT = re.compile(r'\.?([^.\["\]]+)|\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]')
_PLAIN = re.compile(r"[A-Za-z_]\w*")
#: Longest list on one line.
INLINE = 72
_ALWAYS_SHOWN = frozenset({"name", "bucket", "durable_name", "subjects"})
#: Fields that a create always shows, also where the files leave them to the server.
_ALWAYS_CREATED = ("storage", "num_replicas")
#: The first fields of a create.
_FIRST = ("subjects", *_ALWAYS_CREATED)
#: Durations whose zero means "unlimited" to the server.
_ZERO_IS_UNLIMITED = frozenset({"max_age", "ttl"})


def scalar(row: Field | None, value: Any) -> str:
    """Return one value on one line; the exact integer follows where a unit rounds."""
    if isinstance(value, list):
        return f"[{', '.join(scalar(row, item) for item in value)}]"
    kind = row.type if row else ""
    if isinstance(value, int) and not isinstance(value, bool):
        return _number(row, kind, value)
    if isinstance(value, str) and kind in ("enum", "time"):
        return safe(value)
    return quote_json(value)


def _number(row: Field | None, kind: str, value: int) -> str:
    if row is not None and (
        ((row.unlimited or kind == "size") and value < 0)
        or (row.name in _ZERO_IS_UNLIMITED and value == 0)
    ):
        return "unlimited"
    if kind in ("duration", "durations"):
        return units.format_duration(value)
    if kind == "size":
        return size(value)
    return str(value)


def size(value: int) -> str:
    """Return `10GiB`, or `1.50MiB (1572865)` where the unit rounds."""
    shown = units.format_size(value)
    try:
        exact = units.parse_size(shown) == value
    except ValueError:
        exact = False
    return shown if exact else f"{shown} ({value})"


def is_short(row: Field | None, value: Any) -> bool:
    """Return True if a value fits on one line."""
    if isinstance(value, dict):
        return False
    if isinstance(value, list):
        return (
            not any(isinstance(item, dict) for item in value) and len(scalar(row, value)) <= INLINE
        )
    return True


class Leaf(Struct, frozen=True):
    """One line of a configuration.

    `depth` counts the named elements around it. Such an element itself has the value `{}`.
    """

    depth: int
    path: str
    row: Field | None
    value: Any


def flatten(
    table: Table | None, config: dict[str, Any], prefix: str = "", depth: int = 0
) -> Iterator[Leaf]:
    """Yield the leaves of a compact configuration; paths are relative to their element."""
    rows = table.by_name if table else {}
    for name, value in config.items():
        row = rows.get(name)
        path = (
            f"{prefix}{name}"
            if _PLAIN.fullmatch(name)
            else element_path(prefix.removesuffix("."), name)
        )
        if isinstance(value, dict) and value:
            yield from flatten(row.table if row else None, value, f"{path}.", depth)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for index, item in enumerate(value):
                yield from _element(row, path, item, index, depth)
        else:
            yield Leaf(depth, path, row, value)


def _element(
    row: Field | None, path: str, item: dict[str, Any], index: int, depth: int
) -> Iterator[Leaf]:
    if row is not None and row.table is ORIGIN and item.get("name"):
        path, item = element_path(path, origin_key(item)), without_key_fields(item)
    else:
        path = f"{path}[{index}]"
    yield Leaf(depth, path, row, {})
    yield from flatten(row.table if row else None, item, depth=depth + 1)


def without_key_fields(origin: dict[str, Any]) -> dict[str, Any]:
    """Return a source without what its key in a path says already: name, API prefix and filter."""
    rest = {
        key: value
        for key, value in origin.items()
        if key not in ("name", "filter_subject", "external")
    }
    external = {
        key: value
        for key, value in (origin.get("external") or {}).items()
        if key != "api" and value
    }
    return rest | ({"external": external} if external else {})


def create_leaves(kind: str, name: str, after: dict[str, Any]) -> list[Leaf]:
    """Return the fields of a create: `non_default_leaves`, and always storage and replicas."""
    table, found = table_of(kind), _non_default_fields(kind, name, after)
    if table is None or kind == "consumer":
        return list(flatten(table, found))
    first = [n for n in _FIRST if n in table.by_name and (n in found or n in _ALWAYS_CREATED)]
    return list(flatten(table, {n: found.get(n, table.by_name[n].default) for n in first} | found))


def non_default_leaves(kind: str, name: str, after: dict[str, Any]) -> list[Leaf]:
    """Return the fields of a new resource beyond the server's defaults, without its own name."""
    return list(flatten(table_of(kind), _non_default_fields(kind, name, after)))


def _non_default_fields(kind: str, name: str, after: dict[str, Any]) -> dict[str, Any]:
    table = table_of(kind)
    after = lift(kind, name, after) if is_bucket(kind) else after
    compact = table.compact(after) if table else dict(after)
    own = name.rsplit("/", 1)[-1]
    hidden = {key for key in ("name", "bucket", "durable_name") if compact.get(key) == own} | (
        _derived_fields(table, compact) if table else set()
    )
    return {key: value for key, value in compact.items() if key not in hidden}


def _derived_fields(table: Table, compact: dict[str, Any]) -> set[str]:
    """Return fields with the value that the server derives from the others.

    Subjects are always shown.
    """
    found = set()
    for row in table.rows:
        if row.default is None and row.name in compact and row.name not in _ALWAYS_SHOWN:
            without = {key: value for key, value in compact.items() if key != row.name}
            table.fill_derived(without, NEWEST_LEVEL)
            if without.get(row.name) == compact[row.name]:
                found.add(row.name)
    return found


def table_of(kind: str) -> Table | None:
    """Return the field table of a kind; None for a kind of a newer release."""
    if kind in CONTENTS:
        return CONTENTS[kind].table
    known: dict[Kind, Table] = TABLES
    return known.get(kind)  # type: ignore[call-overload, no-any-return]


def top_level(path: str) -> str:
    """Return the top-level field of a path."""
    return re.split(r"[.\[]", path, maxsplit=1)[0]


def row_of(kind: str, path: str) -> Field | None:
    """Return the row of the last name of a path; None for unknown fields and metadata keys.

    An element (`sources["X"]`) has the row of its list.
    """
    table, row = table_of(kind), None
    for match in _SEGMENT.finditer(path):
        if match[1] is None:
            continue
        row = table.by_name.get(match[1]) if table else None
        table = row.table if row else None
    return row


def is_element(path: str) -> bool:
    """Return True if a path names an element of a list rather than a field."""
    return path.endswith("]")


def element_path(path: str, key: str) -> str:
    """Return the path of a named element."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'{path}["{escaped}"]'
