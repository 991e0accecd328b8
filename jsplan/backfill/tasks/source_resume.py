"""Where a source of a target really goes on. One that was there before goes on behind the last message that the target has of it, also
where it says that it begins later: servers look for that message, and know it by the source's name, filters and transforms.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from jsplan.backfill.protocol import read
from jsplan.backfill.protocol.reader import ReadRequest
from jsplan.backfill.tasks.endpoints import Endpoint
from jsplan.backfill.tasks.hashes import SOURCE_HEADER, escape_regex


@dataclass(frozen=True, slots=True)
class LastSourcedQuery:
    """Find the last message of one source in a target: `source_header` is how `Nats-Stream-Source` names it, what is older than `created_at` (ns) is
    of another stream of that name.
    """

    target: Endpoint
    stream: str
    first: int
    last: int
    source_header: tuple[str, str, str]
    created_at: int


def find_last_sourced(task: LastSourcedQuery) -> int:
    """Its sequence at the origin; 0 where there is none. Raises what `wire.read` raises."""
    name, filters, destinations = (escape_regex(part) for part in task.source_header)
    pattern = f"\r\n{SOURCE_HEADER}: ?{name} (?P<seq>[0-9]+) {filters} {destinations}[ \r]"
    found = 0
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
        texts = seq.drop_null()
        found = max([found, *(int(text) for text in texts.to_pylist())])
    return found
