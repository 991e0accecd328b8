"""The journal as bytes: lines of JSON, and carrying them out. Where the bytes are kept is left to the backends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jsplan.documents.base import DocumentError, dumps, parse
from jsplan.documents.validation import find_flaw
from jsplan.errors import StateError
from jsplan.state.document import State


def encode_lines(changes: Iterable[dict[str, Any]]) -> bytes:
    """One line for each change."""
    return b"".join(dumps(change, pretty=False) + b"\n" for change in changes)


def session_line(state: State) -> dict[str, Any]:
    """The first line of a journal: what the document takes as lineage and serial."""
    return {"session": {"lineage": state.lineage, "serial": state.serial}}


def parse_serial(line: bytes) -> int | None:
    """The serial that the first line of a journal says; None for anything else."""
    try:
        found = parse(line, "it", "")
    except DocumentError:
        return None
    return (
        int(found["session"]["serial"])
        if find_flaw(found, "journal") is None and "session" in found
        else None
    )


def replay(state: State, data: bytes, where: str, hint: str) -> None:
    """Carry out the lines that are not in the document yet. A torn last line is a step whose end was never recorded.

    Raises StateError with `hint` that names `where` and the line for any other that cannot be read.
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
        if (flaw := find_flaw(change, "journal")) is not None:
            raise StateError(f"{where}:{number} is damaged: {flaw}", hint=hint)
        if "session" in change and change["session"]["serial"] <= state.serial:
            return  # folded already: the document was replaced, then the process died
        state.apply_change(change)
