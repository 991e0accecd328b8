"""Moves what most entries of a kind have into `defaults:`.

The few entries that lack it then get the server's default.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsplan.address import KINDS, Kind
from jsplan.codegen import layout
from jsplan.codegen.entries import FileEntry
from jsplan.codegen.model import CodegenContext
from jsplan.resources import TABLES
from jsplan.resources.buckets import CREATOR_DEFAULTED, is_bucket, usual_value
from jsplan.resources.fields import ABSENT, Field

#: From this number of entries on, a default saves lines.
_MIN_ENTRIES: Final = 3
#: Fields of a single resource, whatever others have.
_RESOURCE_FIELDS: Final = frozenset(
    {
        "description",
        "subjects",
        "mirror",
        "sources",
        "metadata",
        "durable_name",
        "filter_subject",
        "filter_subjects",
        "deliver_subject",
    }
)


def extract_defaults(entries: list[FileEntry], context: CodegenContext) -> dict[str, Any]:
    """Return the `defaults:` of the file by kind, and remove them from the entries.

    Existing defaults of the workspace are taken into account.
    """
    found: dict[str, Any] = {}
    for kind in KINDS:
        some = [entry for entry in _with_consumers(entries) if entry.kind == kind]
        if context.existing_defaults.get(kind):
            _apply_existing_defaults(some, kind, context.existing_defaults[kind])
        elif kind in context.extractable_kinds and (taken := _extract_for_kind(some, kind)):
            found[kind] = taken
    return found


def _with_consumers(entries: list[FileEntry]) -> Iterator[FileEntry]:
    for entry in entries:
        yield entry
        yield from entry.consumers


def _extract_for_kind(entries: list[FileEntry], kind: Kind) -> dict[str, Any]:
    out = {}
    for row in TABLES[kind].rows:
        value = None if row.name in _RESOURCE_FIELDS else _most_common_value(entries, kind, row)
        if value is not None:
            out[row.name] = value
            _move_to_defaults(entries, kind, row, value)
    return out


def _most_common_value(entries: list[FileEntry], kind: Kind, row: Field) -> Any:
    """Return the value that saves most lines as a default; None if none does."""
    counts = Counter(
        json.dumps(entry.fields[row.name])
        for entry in entries
        if entry.fields.get(row.name) is not None
    )
    if not counts:
        return None
    text, count = counts.most_common(1)[0]
    missing = sum(1 for entry in entries if row.name not in entry.fields)
    worth = count >= _MIN_ENTRIES and count > 3 * missing
    return (
        json.loads(text)
        if worth and (not missing or _explicit_default(kind, row) is not None)
        else None
    )


def _move_to_defaults(entries: list[FileEntry], kind: Kind, row: Field, value: Any) -> None:
    for entry in entries:
        if row.name not in entry.fields:
            entry.fields[row.name] = _explicit_default(kind, row)
        elif entry.fields[row.name] == value:
            del entry.fields[row.name]


def _explicit_default(kind: Kind, row: Field) -> Any:
    """Return a field's default as written; None if it depends on others or cannot be written."""
    if is_bucket(kind) and row.name in CREATOR_DEFAULTED:
        return usual_value(kind, row)
    if row.type == "bool":
        return False
    simple = row.default is not ABSENT and isinstance(row.default, int | str) and row.default != ""
    return layout.format_value(row, row.default) if simple else None


def _apply_existing_defaults(
    entries: list[FileEntry], kind: Kind, existing: Mapping[str, Any]
) -> None:
    """Adapt entries to existing defaults: an omitted field gets the server's own default."""
    for entry in entries:
        for name, value in existing.items():
            row = TABLES[kind].by_name.get(name)
            if row is None:
                continue
            if name not in entry.fields:
                entry.fields[name] = _explicit_default(kind, row)
            elif value is not None and entry.fields[name] == _format_default(row, value):
                del entry.fields[name]


def _format_default(row: Field, value: Any) -> Any:
    """Format a default of the workspace as entries have it, for comparison."""
    try:
        return (
            layout.format_value(row, row.parse(value))
            if row.table is None
            else layout.escape_references(value)
        )
    except ValueError:
        return None


def choose_default_domain(entries: list[FileEntry], context: CodegenContext) -> str | None:
    """Return the domain of most entries, if writing it once saves lines."""
    own = [key for key, domain in context.domains.items() if domain.is_own]
    if not context.may_set_default_domain or context.default_domain is not None or len(own) < 2:
        return None
    alone = Counter(entry.domains[0] for entry in entries if len(entry.domains) == 1)
    key, count = alone.most_common(1)[0] if alone else ("", 0)
    return key if count >= _MIN_ENTRIES and 2 * count > len(entries) else None
