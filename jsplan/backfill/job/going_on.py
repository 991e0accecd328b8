"""Where a source of a target really goes on. One that was there before goes on behind the last message that the target has of it, also
where it says that it begins later: servers look for that message, and know it by the source's name, filters and transforms.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow.compute as pc

from jsplan.backfill.job.digests import SOURCE, escaped
from jsplan.backfill.job.ways import Way
from jsplan.backfill.wire import read
from jsplan.backfill.wire.reading import Range


@dataclass(frozen=True, slots=True)
class LastOf:
    """Find the last message of one source in a target: `header` is how `Nats-Stream-Source` names it, what is older than `since` (ns) is
    of another stream of that name.
    """

    target: Way
    stream: str
    first: int
    last: int
    header: tuple[str, str, str]
    since: int


def last_of(task: LastOf) -> int:
    """Its sequence at the origin; 0 where there is none. Raises what `wire.read` raises."""
    name, filters, destinations = (escaped(part) for part in task.header)
    pattern = f"\r\n{SOURCE}: ?{name} (?P<seq>[0-9]+) {filters} {destinations}[ \r]"
    found = 0
    for rows in read(task.target.open, Range(task.target.api_prefix, task.stream, task.first, task.last, headers_only=True)):
        seq = pc.struct_field(pc.extract_regex(rows["headers"].filter(pc.greater_equal(rows["time"], task.since)), pattern=pattern), "seq")
        texts = seq.drop_null()
        found = max([found, *(int(text) for text in texts.to_pylist())])
    return found
