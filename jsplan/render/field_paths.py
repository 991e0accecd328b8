"""Lookup of field table rows by the paths that a plan uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from jsplan.resources import TABLES
from jsplan.resources.contents import CONTENTS

if TYPE_CHECKING:
    from jsplan.address import Kind
    from jsplan.resources import Field, Table

_SEGMENT = re.compile(r'\.?([^.\["\]]+)|\["((?:[^"\\]|\\.)*)"\]|\[(\d+)\]')


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
