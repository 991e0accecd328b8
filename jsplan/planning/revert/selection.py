"""Selects what a revert undoes: the changes of an entry of the history. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jsplan.address import Address, is_selected, matches
from jsplan.errors import JsplanError, UsageError
from jsplan.state.history import JsonObject, unpack_changes

#: Sessions that changed only state: there is nothing on a server to undo.
STATE_ONLY_OPERATIONS = ("state push", "state rm", "state mv", "refresh")


def entry_name(entry: JsonObject) -> str:
    """Return how messages call an entry, such as `apply 12`."""
    return f"{entry['operation']} {entry['id']}"


def list_revertable_changes(entry: JsonObject) -> list[JsonObject]:
    """Return the changes of an entry. Raises JsplanError if there is nothing to plan."""
    if entry["operation"] in STATE_ONLY_OPERATIONS:
        raise JsplanError(
            f"{entry_name(entry)} changed no server, only the state, so there is nothing to plan",
            hint=f"The state before it: jsplan state pull --serial {entry['id'] - 1}."
            " To restore that: jsplan state push --force",
        )
    changes = unpack_changes(entry)
    if changes is None:
        raise JsplanError(
            f"of {entry_name(entry)} only the counts are kept:"
            " it, or what came after it, was too large",
            hint="Restore the files of that time, and apply them.",
        )
    return changes


def select_changes(
    entry: JsonObject,
    changes: list[JsonObject],
    targets: Sequence[str],
    excludes: Sequence[str],
) -> list[JsonObject]:
    """Select by --target and --exclude. A consumer needs the stream that it was deleted with."""
    for option, globs in (("--target", targets), ("--exclude", excludes)):
        for glob in globs:
            if not any(matches(glob, Address.parse(item["address"])) for item in changes):
                raise UsageError(
                    f"{option} {glob} names nothing that {entry_name(entry)} changed",
                    hint=f"See: jsplan history {entry['id']}",
                )

    found = {
        address: item
        for item in changes
        if is_selected(address := Address.parse(item["address"]), targets, excludes)
    }
    deleted = {Address.parse(item["address"]) for item in changes if item["actions"] == ["delete"]}
    return [
        item
        for address, item in found.items()
        if address.parent not in deleted or address.parent in found
    ]


def list_later_entries(
    entries: Sequence[JsonObject], entry: JsonObject
) -> Mapping[str, list[JsonObject]]:
    """Return by address the later entries that changed it."""
    found: dict[str, list[JsonObject]] = {}
    for other in entries:
        for item in (unpack_changes(other) or ()) if other["id"] > entry["id"] else ():
            found.setdefault(item["address"], []).append(other)
    return found
