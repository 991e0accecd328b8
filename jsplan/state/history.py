"""What was applied, as state keeps it: one entry for each session that changed something. What it means for servers is left to planning.

An entry is plain data, as it stands in the document (state/SPEC.md). It is written when the session begins, and again when it
ends, so that one that was killed is in the history too.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Any, Final

from jsplan.documents.apply import STATE_COMMANDS
from jsplan.documents.base import DocumentError, dumps, parse
from jsplan.documents.validation import require_valid
from jsplan.errors import StateError
from jsplan.state.decompression import ZLIB, inflate

#: Sessions that state remembers.
MAX_ENTRIES: Final = 50
#: Bytes that the changes of all entries may take together. Beyond that the older ones keep their counts alone; the newest keeps all.
MAX_CHANGES_BYTES: Final = 4 * 1024 * 1024
#: Bytes from which the changes of one entry are kept compressed.
COMPRESS_FROM_BYTES: Final = 64 * 1024

JsonObject = dict[str, Any]


def pack_changes(changes: list[JsonObject]) -> Any:
    """The changes as an entry keeps them: as they are, or as `{"zlib": TEXT, "bytes": SIZE}` where they are many."""
    data = dumps(changes, pretty=False)
    if len(data) < COMPRESS_FROM_BYTES:
        return changes
    return {"zlib": base64.b64encode(zlib.compress(data, 6)).decode("ascii"), "bytes": len(data)}


def unpack_changes(entry: JsonObject) -> list[JsonObject] | None:
    """The changes of an entry; None where only their counts were kept. Raises StateError where they are damaged."""
    where, hint = f"entry {entry['id']} of the history", "Other entries are not."
    changes = entry.get("changes")
    try:
        if isinstance(changes, dict):
            changes = parse(
                inflate(base64.b64decode(changes["zlib"], validate=True), ZLIB, changes["bytes"]),
                where,
                hint,
            )
        if changes is not None:
            require_valid(
                changes,
                "changes-by-hand" if entry["operation"] in STATE_COMMANDS else "changes",
                where,
                hint,
            )
    except DocumentError as error:
        raise StateError(str(error), hint=hint) from None
    except ValueError as error:
        raise StateError(f"{where} is damaged: {error}", hint=hint) from None
    found: list[JsonObject] | None = changes
    return found


def with_entry(entries: Iterable[JsonObject], new: JsonObject) -> list[JsonObject]:
    """The history with one more entry, or with one as it is now; the oldest are forgotten."""
    kept = sorted(
        [*(entry for entry in entries if entry["id"] != new["id"]), new],
        key=lambda entry: int(entry["id"]),
    )[-MAX_ENTRIES:]
    return _limit_size(kept)


def _limit_size(kept: list[JsonObject]) -> list[JsonObject]:
    room, found = MAX_CHANGES_BYTES, list[JsonObject]()
    for entry in reversed(kept):
        room -= _changes_size(entry)
        found.append(entry if room >= 0 or not found else entry | {"changes": None})
    return found[::-1]


def _changes_size(entry: JsonObject) -> int:
    """About how many bytes its changes take."""
    match entry.get("changes"):
        case {"zlib": str(text)}:
            return len(text)
        case list(changes):
            return len(dumps(changes, pretty=False))
        case _:
            return 0


def merge_histories(here: Iterable[JsonObject], pushed: Iterable[JsonObject]) -> list[JsonObject]:
    """The history of this place with what another document of the same lineage knows besides."""
    known = {entry["id"]: entry for entry in pushed} | {entry["id"]: entry for entry in here}
    return [known[number] for number in sorted(known)][-MAX_ENTRIES:]
