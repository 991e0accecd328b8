"""Counts of the messages that a mirror or source takes.

To the server a source with another filter or transform is a new one: it copies from the start, or
from behind the last message that the downstream stream still has of it (server_semantics,
section 4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ConnectError
from jsplan.facts.measurement import FlowCount, FlowRequest
from jsplan.facts.messages import (
    MessageReader,
    ReadLimitExceeded,
    count_by_subject,
    list_deleted,
    open_reader,
)
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.nested import reported_seq, source_keys
from jsplan.resources.server_features import TIME_LOOKUP_LEVEL
from jsplan.subjects import is_covered
from jsplan.units import parse_instant


async def count_flows(
    pool: Pool,
    domains: Mapping[str, Domain],
    requests: Iterable[FlowRequest],
    levels: Mapping[str, int],
    limit: int,
) -> dict[Address, list[FlowCount]]:
    """Count each request, by downstream stream. Raises nothing.

    An origin that does not answer is a result with a reason. `limit` bounds the reads of each.
    """
    requests = list(requests)
    await pool.open(
        domains[address.domain].connection
        for request in requests
        for address in (request.downstream, request.origin)
    )

    async def count(request: FlowRequest) -> FlowCount:
        try:
            api = pool.api(domains[request.origin.domain])
            return await _count_for_request(
                api, pool.api(domains[request.downstream.domain]), request, levels, limit
            )
        except (ApiError, ConnectError) as error:
            return FlowCount(request, 0, None, reason=str(error))

    counts: dict[Address, list[FlowCount]] = {}
    for result in await asyncio.gather(*map(count, requests)):
        counts.setdefault(result.request.downstream, []).append(result)
    return counts


async def find_sourced_positions(
    pool: Pool,
    domains: Mapping[str, Domain],
    requests: Iterable[FlowRequest],
    levels: Mapping[str, int],
    limit: int,
) -> dict[tuple[Address, str], int]:
    """Find the last sequence that each stream has by a source, by stream and key; 0: none known.

    Raises ApiError. `limit` bounds the reads of each.
    """
    requests = list(requests)
    await pool.open(domains[request.downstream.domain].connection for request in requests)

    async def find(request: FlowRequest) -> tuple[int, bool]:
        domain = request.downstream.domain
        return await _last_sourced_seq(
            pool.api(domains[domain]), request, levels.get(domain, 0), limit
        )

    found = await asyncio.gather(*map(find, requests))
    return {
        (request.downstream, request.name): seq
        for request, (seq, _) in zip(requests, found, strict=True)
    }


async def _count_for_request(
    origins: DomainApi,
    downstream: DomainApi,
    request: FlowRequest,
    levels: Mapping[str, int],
    limit: int,
) -> FlowCount:
    level = levels.get(request.origin.domain, 0)
    copy = await downstream.stream_info(request.downstream.stream) if request.mirror else None
    info = await origins.stream_info(request.origin.stream)
    if info is None:
        return FlowCount(request, 0, 0)
    if copy is not None and request.origin_goes:
        missing, exact = await _count_only_here(origins, info, downstream, copy, limit)
        return FlowCount(request, missing if exact else 0, missing, as_of=_as_of(info))
    reader = await open_reader(origins, info, level, limit)
    if copy is not None:
        last = int(copy["state"]["last_seq"])
        # A mirror that is ahead copies another stream's messages, of its name.
        after, certain = (last, True) if last <= info["state"]["last_seq"] else (0, False)
    elif request.recreated:
        after, certain = 0, True
    else:
        level_there = levels.get(request.downstream.domain, 0)
        after, certain = await _last_sourced_seq(downstream, request, level_there, limit)
    state = info["state"]
    try:
        start = max(state["first_seq"], request.start_seq, after + 1)
        if request.start_time:
            first = await reader.find_first_since(
                parse_instant(request.start_time), by_time=level >= TIME_LOOKUP_LEVEL
            )
            start = max(start, first.seq if first else state["last_seq"] + 1)
        count = await _count_matching(origins, info, request, start, reader, limit)
        bounds = (count if certain else 0, count)
    except ReadLimitExceeded:
        bounds = (0, int(state["messages"]))
    return FlowCount(request, *bounds, as_of=_as_of(info))


def _as_of(info: Mapping[str, Any]) -> dict[str, Any]:
    state = info["state"]
    return {"last_seq": state["last_seq"], "time": state.get("last_ts")}


async def _count_only_here(
    origins: DomainApi,
    info: Mapping[str, Any],
    downstream: DomainApi,
    copy: Mapping[str, Any],
    limit: int,
) -> tuple[int, bool]:
    """Count the messages of a stream that its mirror lacks; False for an upper bound.

    Raises ApiError.
    """
    state, theirs = info["state"], copy["state"]
    messages, first, last = (int(state[name]) for name in ("messages", "first_seq", "last_seq"))
    begin, end = int(theirs["first_seq"]), int(theirs["last_seq"])
    if not messages or end > last:
        return messages, not messages
    outside = max(0, min(begin, last + 1) - first) + max(0, last - max(end, begin - 1, first - 1))
    if int(state.get("num_deleted") or 0) + int(theirs.get("num_deleted") or 0) > limit:
        return min(messages, outside + int(theirs.get("num_deleted") or 0)), False
    gone, lacking = await _list_gaps(origins, info), await _list_gaps(downstream, copy)
    outside -= sum(seq < begin or seq > end for seq in gone)
    return outside + sum(first <= seq <= last for seq in lacking - gone), True


async def _list_gaps(api: DomainApi, info: Mapping[str, Any]) -> set[int]:
    has_gaps = bool(info["state"].get("num_deleted"))
    return set(await list_deleted(api, info["config"]["name"])) if has_gaps else set()


async def count_skipped(
    origins: DomainApi, downstream: DomainApi, request: FlowRequest, limit: int
) -> int | None:
    """Count the messages that a source still has to copy; None if unknown. Raises ApiError."""
    return (await _count_for_request(origins, downstream, request, {}, limit)).at_most


async def _count_matching(
    api: DomainApi,
    info: Mapping[str, Any],
    request: FlowRequest,
    start: int,
    reader: MessageReader,
    limit: int,
) -> int:
    """Count the messages from a sequence on that the flow takes.

    Raises ReadLimitExceeded and ApiError.
    """
    state = info["state"]
    if start > state["last_seq"]:
        return 0
    if start <= state["first_seq"]:
        if ">" in request.subjects:
            return int(state["messages"])
        counts = await count_by_subject(api, info, reader.budget, 10 * limit)
        if counts is not None:
            return sum(n for subject, n in counts.items() if is_covered(subject, request.subjects))
    matching = 0
    async for message in reader.read_forward(start):
        matching += is_covered(message.subject, request.subjects)
    return matching


async def _last_sourced_seq(
    api: DomainApi, request: FlowRequest, level: int, limit: int
) -> tuple[int, bool]:
    """Find the origin's last sequence of just this source downstream, and if that is certain.

    Where a server reports it, the message itself may be deleted.
    """
    info = await api.stream_info(request.downstream.stream)
    if info is None:
        return 0, False
    # An origin that lags has not been copied completely.
    origins = [*filter(None, [info.get("mirror")]), *(info.get("sources") or ())]
    certain = all(not each.get("lag") and each.get("active", -1) >= 0 for each in origins)
    has_it = request.name in source_keys(info["config"])  # reports do not name consumers
    if has_it and (seq := reported_seq(request.name, info.get("sources") or ())):
        return seq, certain
    reader = await open_reader(api, info, level, limit)
    try:
        async for message in reader.read_backward():
            if message.source is not None and message.source.source == request.source:
                return message.source.seq, certain
    except (ReadLimitExceeded, ApiError):
        return 0, False
    return 0, certain
