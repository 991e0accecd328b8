"""What most entries of a kind say goes into `defaults:`, and the few that do not say it say the server's own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from jsplan.address import KINDS, Kind
from jsplan.generating import human
from jsplan.generating.entries import Entry
from jsplan.generating.model import Surroundings
from jsplan.resources import TABLES
from jsplan.resources.buckets import DECIDED, is_bucket, usual
from jsplan.resources.fields import ABSENT, Field

#: A default is worth its line from here on.
_ENOUGH: Final = 3
#: What belongs to one resource, whatever others say.
_OWN: Final = frozenset(
    {"description", "subjects", "mirror", "sources", "metadata", "durable_name", "filter_subject", "filter_subjects", "deliver_subject"}
)


def defaults(entries: list[Entry], world: Surroundings) -> dict[str, Any]:
    """The `defaults:` of the file by kind; takes from the entries what they say. What the workspace has already is regarded."""
    found: dict[str, Any] = {}
    for kind in KINDS:
        some = [entry for entry in _all(entries) if entry.kind == kind]
        if world.standing.get(kind):
            _regard(some, kind, world.standing[kind])
        elif kind in world.factor and (taken := _factored(some, kind)):
            found[kind] = taken
    return found


def _all(entries: list[Entry]) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        yield from entry.consumers


def _factored(entries: list[Entry], kind: Kind) -> dict[str, Any]:
    out = {}
    for row in TABLES[kind].rows:
        value = None if row.name in _OWN else _most_said(entries, kind, row)
        if value is not None:
            out[row.name] = value
            _take(entries, kind, row, value)
    return out


def _most_said(entries: list[Entry], kind: Kind, row: Field) -> Any:
    """The value that saves most lines as a default; None where none does."""
    said = Counter(json.dumps(entry.fields[row.name]) for entry in entries if entry.fields.get(row.name) is not None)
    if not said:
        return None
    text, count = said.most_common(1)[0]
    missing = sum(1 for entry in entries if row.name not in entry.fields)
    worth = count >= _ENOUGH and count > 3 * missing
    return json.loads(text) if worth and (not missing or _plain_default(kind, row) is not None) else None


def _take(entries: list[Entry], kind: Kind, row: Field, value: Any) -> None:
    for entry in entries:
        if row.name not in entry.fields:
            entry.fields[row.name] = _plain_default(kind, row)
        elif entry.fields[row.name] == value:
            del entry.fields[row.name]


def _plain_default(kind: Kind, row: Field) -> Any:
    """How what a field is without being said is written; None where it depends on the rest, or cannot be written."""
    if is_bucket(kind) and row.name in DECIDED:
        return usual(kind, row)
    if row.type == "bool":
        return False
    simple = row.default is not ABSENT and isinstance(row.default, int | str) and row.default != ""
    return human.value(row, row.default) if simple else None


def _regard(entries: list[Entry], kind: Kind, standing: Mapping[str, Any]) -> None:
    """Where the workspace has defaults, an entry that leaves a field out takes theirs: it names the server's own instead."""
    for entry in entries:
        for name, value in standing.items():
            row = TABLES[kind].by_name.get(name)
            if row is None:
                continue
            if name not in entry.fields:
                entry.fields[name] = _plain_default(kind, row)
            elif value is not None and entry.fields[name] == _as_written(row, value):
                del entry.fields[name]


def _as_written(row: Field, value: Any) -> Any:
    """A default of the workspace in the form that entries have, so that the two can be compared."""
    try:
        return human.value(row, row.parse(value)) if row.table is None else human.literal(value)
    except ValueError:
        return None


def default_domain(entries: list[Entry], world: Surroundings) -> str | None:
    """The domain that most entries are in, if saying it once saves lines."""
    own = [key for key, domain in world.domains.items() if domain.same_as is None]
    if not world.factor_domain or world.default_domain is not None or len(own) < 2:
        return None
    alone = Counter(entry.domains[0] for entry in entries if len(entry.domains) == 1)
    key, count = alone.most_common(1)[0] if alone else ("", 0)
    return key if count >= _ENOUGH and 2 * count > len(entries) else None
