"""Decompression to a known size: a few megabytes may unpack to terabytes."""

from __future__ import annotations

import zlib
from typing import Final

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
