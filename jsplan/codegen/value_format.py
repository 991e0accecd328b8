"""Values as people write them: durations and sizes with units, numbers as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from jsplan import units
from jsplan.config.interpolate import escape
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
        return (
            [format_fields(row.table, item) for item in found]
            if row.type == "objects"
            else format_fields(row.table, found)
        )
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
    if isinstance(found, str):
        return escape(found)
    if isinstance(found, list):
        return [escape_references(item) for item in found]
    return (
        {escape_references(key): escape_references(item) for key, item in found.items()}
        if isinstance(found, Mapping)
        else found
    )
