"""The history in state: one entry for each session that changed something.

An entry is plain data, as in the document (state/SPEC.md). It is written when the session begins
and again when it ends, so a killed session has an entry too.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable
from typing import Any, Final

from jsplan.documents.apply import STATE_COMMANDS
from jsplan.documents.base import DocumentError, dumps, parse
from jsplan.documents.reading import decode
from jsplan.documents.state_parts import ChangeByHand, RecordedChange
from jsplan.errors import StateError
from jsplan.state.parts import ZLIB, inflate

#: Sessions that the history keeps.
MAX_ENTRIES: Final = 50
#: Bytes of the changes of all entries. Beyond that, older entries keep only their counts.
MAX_CHANGES_BYTES: Final = 4 * 1024 * 1024
#: Bytes from which the changes of one entry are compressed.
COMPRESS_FROM_BYTES: Final = 64 * 1024

JsonObject = dict[str, Any]


def pack_changes(changes: list[JsonObject]) -> Any:
    """Encode changes for an entry: unchanged if short, else `{"zlib": TEXT, "bytes": SIZE}`.

    One change is encoded after the other: all together may be tens of megabytes.
    """
    compressor, packed, size = zlib.compressobj(6), bytearray(), 0
    for number, change in enumerate(changes):
        data = (b"," if number else b"[") + dumps(change, pretty=False)
        packed += compressor.compress(data)
        size += len(data)
    if size + 1 < COMPRESS_FROM_BYTES:
        return changes
    packed += compressor.compress(b"]") + compressor.flush()
    return {"zlib": base64.b64encode(packed).decode("ascii"), "bytes": size + 1}


def unpack_changes(entry: JsonObject) -> list[JsonObject] | None:
    """Decode the changes of an entry; None where only the counts were kept.

    Raises StateError where they are damaged.
    """
    where, hint = f"entry {entry['id']} of the history", "Other entries are not damaged."
    changes = entry.get("changes")
    try:
        if isinstance(changes, dict):
            changes = parse(
                inflate(base64.b64decode(changes["zlib"], validate=True), ZLIB, changes["bytes"]),
                where,
                hint,
            )
        if changes is not None:
            by_hand = entry["operation"] in STATE_COMMANDS
            kind: Any = list[ChangeByHand] if by_hand else list[RecordedChange]
            decode(kind, changes, where, hint)
    except DocumentError as error:
        raise StateError(str(error), hint=hint) from None
    except ValueError as error:
        raise StateError(f"{where} is damaged: {error}", hint=hint) from None
    unpacked: list[JsonObject] | None = changes
    return unpacked


def with_entry(entries: Iterable[JsonObject], new: JsonObject) -> list[JsonObject]:
    """Add an entry to the history, or replace the one with its id. Drop the oldest entries."""
    newest = sorted(
        [*(entry for entry in entries if entry["id"] != new["id"]), new],
        key=lambda entry: int(entry["id"]),
    )[-MAX_ENTRIES:]
    return _limit_size(newest)


def _limit_size(entries: list[JsonObject]) -> list[JsonObject]:
    capacity, limited = MAX_CHANGES_BYTES, list[JsonObject]()
    for entry in reversed(entries):
        capacity -= _changes_size(entry)
        limited.append(entry if capacity >= 0 or not limited else entry | {"changes": None})
    return limited[::-1]


def _changes_size(entry: JsonObject) -> int:
    """Return the approximate size of the changes in bytes."""
    match entry.get("changes"):
        case {"zlib": str(text)}:
            return len(text)
        case list(changes):
            return len(dumps(changes, pretty=False))
        case _:
            return 0


def merge_histories(here: Iterable[JsonObject], pushed: Iterable[JsonObject]) -> list[JsonObject]:
    """Add to the history here the entries of a pushed document of the same lineage."""
    known = {entry["id"]: entry for entry in pushed} | {entry["id"]: entry for entry in here}
    return [known[number] for number in sorted(known)][-MAX_ENTRIES:]
