"""Reads the entries of the history, with the changes of an entry by field."""

from __future__ import annotations

from typing import Any

from jsplan.address import Address
from jsplan.diagnostics import did_you_mean
from jsplan.documents.base import plain
from jsplan.errors import JsplanError
from jsplan.planning.decide import table_of
from jsplan.planning.diff import field_changes, with_bucket_names
from jsplan.resources.server_features import NEWEST_LEVEL
from jsplan.state import State
from jsplan.state.history import MAX_ENTRIES, JsonObject, unpack_changes


def find_entry(state: State, number: int) -> JsonObject:
    """Return the entry with this id. Raises JsplanError with the existing ids."""
    for entry in state.history:
        if entry["id"] == number:
            return entry
    known = [str(entry["id"]) for entry in state.history]
    if not known:
        raise JsplanError(
            f"there is no entry for an apply {number}: the history is empty",
            hint="It begins with the next apply.",
        )
    near = did_you_mean(str(number), known) or f" It has {known[0]} to {known[-1]}."
    raise JsplanError(
        f"the history has no entry {number}.{near}",
        hint=f"See: jsplan history. The newest {MAX_ENTRIES} are kept.",
    )


def without_changes(entry: JsonObject) -> JsonObject:
    """Return an entry for the list."""
    return {name: value for name, value in entry.items() if name != "changes"}


def with_changes(entry: JsonObject) -> JsonObject:
    """Return an entry with its changes by field; null if state has only counts."""
    changes = unpack_changes(entry)
    return entry | {
        "changes": None if changes is None else [_build_change(item) for item in changes]
    }


def _build_change(item: JsonObject) -> JsonObject:
    """Build one change with the differences instead of whole configurations."""
    identity = {
        name: item[name]
        for name in ("address", "actions", "importing", "moved_from")
        if name in item
    }
    return identity | {
        "status": item.get("status", "done"),
        "fields": _field_changes(item),
        "costs": item.get("costs", []),
        "error": item.get("error"),
    }


def _field_changes(item: JsonObject) -> list[dict[str, Any]]:
    values, address = (item.get("after") or {}).get("values") or {}, Address.parse(item["address"])
    if not values or not item.get("before"):
        return []
    table = table_of(address)
    before = table.compact(item["before"])
    after = {name: value for name, value in (before | values).items() if value is not None}
    return [
        plain(change)
        for change in with_bucket_names(address, field_changes(table, before, after, NEWEST_LEVEL))
    ]
