"""Decompression of a known size: a few megabytes may unpack to terabytes."""

from __future__ import annotations

import zlib
from typing import Final

#: What zlib calls its formats.
GZIP, ZLIB = 31, 15
_EXTRA_BYTES: Final = 1


def inflate(data: bytes, form: int, size: int) -> bytes:
    """Unpack exactly `size` bytes. Raises ValueError for damaged data and for another size."""
    unpacking = zlib.decompressobj(form)
    try:
        found = unpacking.decompress(data, size + _EXTRA_BYTES)
    except zlib.error as error:
        raise ValueError(f"it cannot be unpacked: {error}") from None
    if len(found) != size or not unpacking.eof:
        raise ValueError(f"what was compressed is not the {size:,} bytes that it should be")
    return found
