"""Where in a stream a time is, asked without a consumer: by direct reads that halve what is left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.facts.live import LiveObject
from jsplan.facts.messages import TooManyReads, reader_of
from jsplan.facts.recopied import BY_TIME
from jsplan.jetstream import Pool

#: Reads for one time at most; a stream of a billion messages takes thirty.
READS = 200


async def places(
    pool: Pool, domains: Mapping[str, Domain], wanted: Iterable[tuple[LiveObject, str]], levels: Mapping[str, int]
) -> dict[tuple[Address, str], int]:
    """The sequence of the first message at or after each RFC 3339 time, one after the last where there is none. Raises ApiError."""
    found: dict[tuple[Address, str], int] = {}
    for live, time in wanted:
        address, level = live.address, levels.get(live.address.domain, 0)
        info = {"config": live.raw, "state": live.state | {"num_deleted": 0}}  # which ones are deleted is not asked
        reader = await reader_of(pool.api(domains[address.domain]), info, level, READS)
        try:
            first = await reader.first_since(time, by_time=level >= BY_TIME)
        except TooManyReads:
            continue
        found[address, time] = first.seq if first is not None else int(live.state["last_seq"]) + 1
    return found
