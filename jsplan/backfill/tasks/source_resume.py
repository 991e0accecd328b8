"""Find which messages of a target one of its sources has delivered.

The server resumes an earlier source after the last message that it delivered, even if the source
says that it begins later. It finds that message by the name, filters and transforms of the source.
"""

from __future__ import annotations

from typing import Final

import pyarrow.compute as pc
from msgspec import Struct

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import escape_regex
from jsplan.planning.backfill.model import SeqRange
from jsplan.resources.source_header import SOURCE_HEADER, SourceName

_NO_SEQ: Final = 1 << 63


class SourcedQuery(Struct, frozen=True):
    """Find the first and last message of one source in a target.

    Messages before `created_at` (ns) are of another stream of that name.
    """

    target: Endpoint
    stream: str
    first: int
    last: int
    source: SourceName
    created_at: int


def find_sourced_range(task: SourcedQuery) -> SeqRange | None:
    """Return the lowest and highest origin sequence, or None. Raises the errors of `read`."""
    name, filters, destinations = (escape_regex(part) for part in task.source)
    pattern = f"\r\n{SOURCE_HEADER}: ?{name} (?P<seq>[0-9]+) {filters} {destinations}[ \r]"
    lowest, highest = 0, 0
    for rows in read(
        task.target.open,
        ReadRequest(task.target.api_prefix, task.stream, task.first, task.last, headers_only=True),
    ):
        seq = pc.struct_field(
            pc.extract_regex(
                rows["headers"].filter(pc.greater_equal(rows["time"], task.created_at)),
                pattern=pattern,
            ),
            "seq",
        )
        found = [int(text) for text in seq.drop_null().to_pylist()]
        lowest = min([lowest or _NO_SEQ, *found]) if found else lowest
        highest = max([highest, *found])
    return SeqRange(lowest, highest) if highest else None
