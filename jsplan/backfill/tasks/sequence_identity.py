"""Identify messages without `Jsplan-Origin` by their sequence in the staging stream.

A message without space for that header is staged unchanged. The name of its staging stream
contains the hash of the origin, and the message keeps its origin's sequence there. Servers write
both into `Nats-Stream-Source` of the target. The other messages of such a stream have the header.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.address import BACKFILL_PREFIX
from jsplan.backfill.message_schema import ORIGIN_HEADER, contains_bytes
from jsplan.backfill.protocol.frames import BYTES
from jsplan.backfill.tasks.hashes import SOURCE_HEADER

#: A header block without headers. A server stores it for a message that had none.
EMPTY_BLOCK: Final = b"NATS/1.0\r\n\r\n"


def find_staged_sequences(headers: pa.BinaryArray, origin_hash: str) -> pa.Array:
    """Return the origin sequence of each message without origin header; null for all others."""
    if not origin_hash or not contains_bytes(headers, f"_{origin_hash} ".encode()):
        return pa.nulls(len(headers), pa.int64())
    found = pc.extract_regex(
        headers,
        pattern=f"\r\n{SOURCE_HEADER}: ?{BACKFILL_PREFIX}[0-9a-f]+_{origin_hash} (?P<seq>[0-9]+)",
    )
    seqs = pc.cast(pc.struct_field(found, "seq").view(pa.string()), pa.int64())
    return pc.if_else(
        pc.match_substring(headers, f"\r\n{ORIGIN_HEADER}:".encode()),
        pa.scalar(None, pa.int64()),
        seqs,
    )


def to_stored_headers(headers: pa.BinaryArray) -> pa.BinaryArray:
    """Return header blocks as the target stores them, without the source header of the server."""
    return pc.if_else(
        pc.equal(pc.binary_length(headers), 0), pa.scalar(EMPTY_BLOCK, BYTES), headers
    )
