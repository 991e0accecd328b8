"""The journal as bytes: lines of JSON, and carrying them out. Where the bytes are kept is left to the backends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from jsplan.documents.base import dumps
from jsplan.errors import StateError
from jsplan.state.document import State


def encode(changes: Iterable[dict[str, Any]]) -> bytes:
    """One line for each change."""
    return b"".join(dumps(change, pretty=False) + b"\n" for change in changes)


def session_of(state: State) -> dict[str, Any]:
    """The first line of a journal: what the document takes as lineage and serial."""
    return {"session": {"lineage": state.lineage, "serial": state.serial}}


def serial_of(line: bytes) -> int | None:
    """The serial that the first line of a journal says; None for anything else."""
    try:
        serial = orjson.loads(line)["session"]["serial"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return None
    return serial if isinstance(serial, int) else None


def carry_out(state: State, data: bytes, where: str, hint: str) -> None:
    """Carry out the lines that are not in the document yet. A torn last line is a step whose end was never recorded.

    Raises StateError with `hint` that names `where` and the line for any other that cannot be read.
    """
    for number, change in _lines(state, data, where, hint):
        try:
            state.apply(change)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise _damaged(where, number, hint) from None


def _lines(state: State, data: bytes, where: str, hint: str) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            change = orjson.loads(line) if line else {}
        except orjson.JSONDecodeError:
            if number == len(lines):
                return
            raise _damaged(where, number, hint) from None
        match change:
            case {"session": {"serial": int(serial)}} if serial <= state.serial:
                return  # folded already: the document was replaced, then the process died
            case dict():
                yield number, change
            case _:
                raise _damaged(where, number, hint)


def _damaged(where: str, number: int, hint: str) -> StateError:
    return StateError(f"{where}:{number} is damaged", hint=hint)
