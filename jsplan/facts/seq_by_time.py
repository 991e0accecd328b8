"""Lookup of a stream's sequence by time: a binary search by direct reads, no consumer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.facts.live import LiveObject
from jsplan.facts.messages import ReadLimitExceeded, open_reader
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.server_features import TIME_LOOKUP_LEVEL
from jsplan.units import parse_instant

#: Most reads for one time. A stream of a billion messages takes thirty.
MAX_READS = 200


async def find_seqs_by_time(
    pool: Pool,
    domains: Mapping[str, Domain],
    wanted: Iterable[tuple[LiveObject, str]],
    levels: Mapping[str, int],
) -> dict[tuple[Address, str], int]:
    """Find the sequence of the first message at or after each RFC 3339 time.

    One after the last where there is none. Raises ApiError.
    """
    seqs: dict[tuple[Address, str], int] = {}
    for live, time in wanted:
        address = live.address
        info = {"config": live.raw, "state": live.state}
        api, level = pool.api(domains[address.domain]), levels.get(address.domain, 0)
        if (seq := await find_seq_at(api, info, time, level)) is not None:
            seqs[address, time] = seq
    return seqs


async def find_seq_at(api: DomainApi, info: Mapping[str, Any], time: str, level: int) -> int | None:
    """Find the sequence of the first message at or after an RFC 3339 time, or None.

    It is one after the last where there is none, and None where `MAX_READS` do not suffice. `info`
    is STREAM.INFO, `level` the API level of its domain. Raises ApiError.
    """
    # Without `num_deleted` the reader does not request the gaps.
    info = {"config": info["config"], "state": info["state"] | {"num_deleted": 0}}
    reader = await open_reader(api, info, level, MAX_READS)
    try:
        first = await reader.find_first_since(
            parse_instant(time), by_time=level >= TIME_LOOKUP_LEVEL
        )
    except ReadLimitExceeded:
        return None
    return first.seq if first is not None else int(info["state"]["last_seq"]) + 1
