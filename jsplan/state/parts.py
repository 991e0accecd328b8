"""A state document as messages: as it is where it fits into one, else compressed in parts that a small head names.

Reading and writing the messages is left to `kv`.
"""

from __future__ import annotations

import gzip
import hashlib
import uuid
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from jsplan.documents.base import DocumentError, check_format, dumps, flaw
from jsplan.errors import StateError
from jsplan.state.document import FORMAT_VERSION

KIND = "state-in-parts"


@dataclass(frozen=True, slots=True)
class Packed:
    """A head: the names of the parts in order, the SHA-256 of all of them together (hex), and the serial."""

    names: list[str]
    sha256: str
    serial: int


def pack(document: dict[str, Any], largest: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """The value of the key, and the parts that are to be there before it; each has at most `largest` bytes.

    A part's name is `SERIAL.ID.NUMBER`: no two writers ever use the same one.
    """
    whole = dumps(document)
    if len(whole) <= largest:
        return whole, []
    data = gzip.compress(whole, compresslevel=6, mtime=0)
    prefix = f"{document['serial']}.{uuid.uuid4().hex}"
    pieces = [data[start : start + largest] for start in range(0, len(data), largest)]
    parts = [(f"{prefix}.{number}", piece) for number, piece in enumerate(pieces, 1)]
    known = {name: document[name] for name in ("workspace", "environment", "lineage", "serial")}
    head = {"format_version": FORMAT_VERSION, "kind": KIND, "encoding": "gzip", "parts": prefix, "count": len(parts)}
    return dumps(head | known | {"sha256": hashlib.sha256(data).hexdigest()}), parts


def parse(data: bytes, where: str, hint: str) -> Any:
    """The JSON; raises StateError for anything else."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise StateError(f"{where} is damaged: {error}", hint=hint) from None


def read_head(data: bytes, where: str, hint: str) -> Packed | Any:
    """The document itself, or the head that names its parts. Raises StateError for a damaged or newer one."""
    raw = parse(data, where, hint)
    if not isinstance(raw, dict) or raw.get("kind") != KIND:
        return raw
    try:
        check_format(raw, KIND, FORMAT_VERSION, where)
        if raw["encoding"] != "gzip":
            raise StateError(f"{where} is kept as {raw['encoding']}, which this jsplan does not read", hint="Use a newer release.")
        names = [f"{raw['parts']}.{number}" for number in range(1, raw["count"] + 1)]
        return Packed(names, raw["sha256"], raw["serial"])
    except DocumentError as error:
        raise StateError(str(error), hint=error.hint) from None
    except (KeyError, TypeError) as error:
        raise StateError(f"{where} is damaged: {flaw(error)}", hint=hint) from None


def join(head: Packed, parts: Sequence[bytes | None], where: str, hint: str) -> bytes:
    """The document's bytes; raises StateError where a part is missing or something is not as it was written."""
    missing = [number for number, part in enumerate(parts, 1) if part is None]
    if missing:
        raise StateError(f"{where} is damaged: part {missing[0]} of {len(parts)} is missing", hint=hint)
    data = b"".join(part or b"" for part in parts)
    if hashlib.sha256(data).hexdigest() != head.sha256:
        raise StateError(f"{where} is damaged: its parts are not what was written", hint=hint)
    try:
        return gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as error:  # pragma: no cover - the hash was right
        raise StateError(f"{where} is damaged: {error}", hint=hint) from None
