"""Messages that have no room for `Jsplan-Origin` are known by where they were staged: their staging stream has the origin in its name and
gives each of them the sequence that it had there, and servers write both into `Nats-Stream-Source` of the target.

Of the other messages of such a stream that says nothing: they have the header. How they get there is left to `oversize`.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from jsplan.address import BACKFILL
from jsplan.backfill.columns import ORIGIN, mentions
from jsplan.backfill.job.digests import SOURCE
from jsplan.backfill.wire.frames import BYTES

#: A header block without a header: what a server makes of a message that had none.
EMPTY: Final = b"NATS/1.0\r\n\r\n"


def numbered_in(headers: pa.BinaryArray, mark: str) -> pa.Array:
    """The sequence at the origin of the messages that came without saying where from; null for all others."""
    if not mark or not mentions(headers, f"_{mark} ".encode()):
        return pa.nulls(len(headers), pa.int64())
    found = pc.extract_regex(headers, pattern=f"\r\n{SOURCE}: ?{BACKFILL}[0-9a-f]+_{mark} (?P<seq>[0-9]+)")
    seqs = pc.cast(pc.struct_field(found, "seq").view(pa.string()), pa.int64())
    return pc.if_else(pc.match_substring(headers, f"\r\n{ORIGIN}:".encode()), pa.scalar(None, pa.int64()), seqs)


def stored(headers: pa.BinaryArray) -> pa.BinaryArray:
    """Header blocks as the target has them, without the line that the server adds."""
    return pc.if_else(pc.equal(pc.binary_length(headers), 0), pa.scalar(EMPTY, BYTES), headers)
