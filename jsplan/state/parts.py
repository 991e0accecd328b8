"""Encoding of a state document as KV values: one value, or a head and compressed parts.

Parts are unpacked to a known size: a few megabytes may unpack to terabytes.
"""

from __future__ import annotations

import gzip
import hashlib
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Final

from msgspec import Meta, field

from jsplan.documents.base import MAX_BYTES, Document, DocumentError, dumps, parse
from jsplan.documents.reading import read_document
from jsplan.documents.types import Count, Sha256, text
from jsplan.errors import StateError

KIND = "state-in-parts"


PartsPrefix = Annotated[str, text("a prefix of parts", r"^\d{1,16}\.[0-9a-f]{1,64}$(?!\n)")]


class PartsHead(Document, tag=KIND):
    """The head of a document in parts.

    It has the prefix and number of the parts, the SHA-256 of all parts together, and the size and
    identity of the document.
    """

    prefix: PartsPrefix = field(name="parts")
    count: Annotated[int, Meta(ge=1, le=1_000_000)]
    bytes: Annotated[int, Meta(ge=0, le=MAX_BYTES)]
    sha256: Sha256
    workspace: str
    environment: str | None
    lineage: str
    serial: Count
    encoding: str

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
    head = PartsHead(
        prefix,
        len(parts),
        len(whole),
        hashlib.sha256(data).hexdigest(),
        document["workspace"],
        document["environment"],
        document["lineage"],
        document["serial"],
        "gzip",
    )
    return dumps(head.to_json()), parts


def read_head(data: bytes, where: str, hint: str) -> PartsHead | Any:
    """Parse a value: the document itself, or its head. Raises StateError if damaged or newer."""
    try:
        raw = parse(data, where, hint)
        if not isinstance(raw, dict) or raw.get("kind") != KIND:
            return raw
        head = read_document(PartsHead, raw, where, hint)
    except DocumentError as error:
        raise StateError(str(error), hint=error.hint) from None
    if head.encoding != "gzip":
        raise StateError(
            f"{where} has an encoding that this jsplan does not support",
            hint="Use a newer release.",
        )
    return head


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


# --- decompression --------------------------------------------------------------------------------

#: Formats of zlib (`wbits`).
GZIP, ZLIB = 31, 15
_EXTRA_BYTES: Final = 1


def inflate(data: bytes, form: int, size: int) -> bytes:
    """Unpack exactly `size` bytes. Raises ValueError for damaged data and for another size."""
    unpacking = zlib.decompressobj(form)
    try:
        unpacked = unpacking.decompress(data, size + _EXTRA_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if len(unpacked) != size or not unpacking.eof:
        raise ValueError(f"the compressed data is not the expected {size:,} bytes")
    return unpacked
