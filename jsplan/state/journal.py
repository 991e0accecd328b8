"""The journal as bytes: lines of JSON, and their replay."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from jsplan.documents.base import DocumentError, dumps, parse
from jsplan.errors import StateError
from jsplan.state.document import JournalLine, State, find_line_flaw, require_readable


def encode_lines(changes: Iterable[dict[str, Any]]) -> bytes:
    """Encode one line for each change. Raises StateError for one that no reader would accept."""
    lines = []
    for change in changes:
        require_readable(change, JournalLine)
        lines.append(dumps(change, pretty=False) + b"\n")
    return b"".join(lines)


def session_line(state: State) -> dict[str, Any]:
    """Return the first line of a journal: the lineage and serial that the document takes."""
    return {"session": {"lineage": state.lineage, "serial": state.serial}}


def parse_serial(line: bytes) -> int | None:
    """Parse the serial in the first line of a journal; None for anything else."""
    try:
        change = parse(line, "it", "")
    except DocumentError:
        return None
    return (
        int(change["session"]["serial"])
        if find_line_flaw(change) is None and "session" in change
        else None
    )


def replay(state: State, data: bytes, where: str, hint: str, without: Collection[str] = ()) -> None:
    """Apply the lines that are not in the document yet. Ignore a torn last line.

    A torn last line is a step whose end was not recorded. Lines about the addresses `without` are
    left out. Raises StateError with `hint` that names `where` and the line for any other that
    cannot be read.
    """
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            change = parse(line, f"{where}:{number}", hint)
        except DocumentError as error:
            if number == len(lines):
                return
            raise StateError(str(error), hint=error.hint) from None
        if without and not _addresses_of(change).isdisjoint(without):
            continue
        if (flaw := find_line_flaw(change)) is not None:
            raise StateError(f"{where}:{number} is damaged: {flaw}", hint=hint)
        if "session" in change and change["session"]["serial"] <= state.serial:
            return  # folded already: the process died after it replaced the document
        state.apply_change(change)


def _addresses_of(change: Any) -> set[str]:
    """Return the addresses that a line is about, of one that may be damaged."""
    found = list(change.values()) if isinstance(change, dict) else []
    named = [value.get("address") if isinstance(value, dict) else value for value in found]
    return {name for name in named if isinstance(name, str)}
