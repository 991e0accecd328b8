"""Encoding of a state document as KV values: one value, or a head and compressed parts."""

from __future__ import annotations

import gzip
import hashlib
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from jsplan.documents.base import MAX_BYTES, DocumentError, check_format, dumps, parse
from jsplan.documents.validation import require_valid
from jsplan.errors import StateError
from jsplan.state.decompression import GZIP, inflate
from jsplan.state.document import FORMAT_VERSION

KIND = "state-in-parts"


class PartsHead(Struct, frozen=True):
    """The head of a document in parts.

    It has the prefix and number of the parts, the SHA-256 of all parts together (hex), and the
    size and serial of the document.
    """

    prefix: str
    count: int
    sha256: str
    bytes: int
    serial: int

    @property
    def part_names(self) -> Iterator[str]:
        """Names of the parts in order."""
        return (f"{self.prefix}.{number}" for number in range(1, self.count + 1))


def split_document(document: dict[str, Any], largest: int) -> tuple[bytes, list[tuple[str, bytes]]]:
    """Split a document into the value of the key and parts of at most `largest` bytes.

    The parts are to be written before the value. A part's name is `SERIAL.ID.NUMBER`: no two
    writers use the same one. Raises StateError for a document that is too large to be read again.
    """
    whole = dumps(document)
    if len(whole) <= largest:
        return whole, []
    if len(whole) > MAX_BYTES:
        raise StateError(
            f"the state has {len(whole):,} bytes, more than the limit of {MAX_BYTES:,}",
            hint="Split the workspace.",
        )
    data = gzip.compress(whole, compresslevel=6, mtime=0)
    prefix = f"{document['serial']}.{uuid.uuid4().hex}"
    chunks = [data[start : start + largest] for start in range(0, len(data), largest)]
    parts = [(f"{prefix}.{number}", chunk) for number, chunk in enumerate(chunks, 1)]
    known = {name: document[name] for name in ("workspace", "environment", "lineage", "serial")}
    head = {
        "format_version": FORMAT_VERSION,
        "kind": KIND,
        "encoding": "gzip",
        "parts": prefix,
        "count": len(parts),
        "bytes": len(whole),
    }
    return dumps(head | known | {"sha256": hashlib.sha256(data).hexdigest()}), parts


def read_head(data: bytes, where: str, hint: str) -> PartsHead | Any:
    """Parse a value: the document itself, or its head. Raises StateError if damaged or newer."""
    try:
        raw = parse(data, where, hint)
        if not isinstance(raw, dict) or raw.get("kind") != KIND:
            return raw
        check_format(raw, KIND, FORMAT_VERSION, where)
        require_valid(raw, KIND, where, hint)
    except DocumentError as error:
        raise StateError(str(error), hint=error.hint) from None
    if raw["encoding"] != "gzip":
        raise StateError(
            f"{where} has an encoding that this jsplan does not support",
            hint="Use a newer release.",
        )
    return PartsHead(raw["parts"], raw["count"], raw["sha256"], raw["bytes"], raw["serial"])


def join_parts(head: PartsHead, parts: Sequence[bytes | None], where: str, hint: str) -> bytes:
    """Join the parts to the document's bytes. Raises StateError where one is missing or damaged."""
    missing = [number for number, part in enumerate(parts, 1) if part is None]
    if missing:
        raise StateError(
            f"{where} is damaged: part {missing[0]} of {head.count:,} is missing", hint=hint
        )
    data = b"".join(part or b"" for part in parts)
    if hashlib.sha256(data).hexdigest() != head.sha256:
        raise StateError(f"{where} is damaged: its parts do not match their checksum", hint=hint)
    try:
        return inflate(data, GZIP, head.bytes)
    except ValueError as error:
        raise StateError(f"{where} is damaged: {error}", hint=hint) from None
