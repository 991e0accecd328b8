"""Counts the messages of an origin that a new source copies although another one does, or did. Reads, never writes.

To the server a source with another filter or transform is a new one: it copies from the start, or from behind the last
message that the copy still holds of it (server_semantics, section 4). Which sources these are is left to planning.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.errors import ApiError, ConnectError
from jsplan.facts.duplicates import DuplicateCount, DuplicateRequest
from jsplan.facts.messages import MessageReader, ReadLimitExceeded, count_by_subject, open_reader
from jsplan.jetstream import DomainApi, Pool
from jsplan.subjects import is_covered

#: From this level (2.11) on messages can be looked up by time.
TIME_LOOKUP_LEVEL = 1


async def count_duplicates(
    pool: Pool,
    domains: Mapping[str, Domain],
    asked: Iterable[DuplicateRequest],
    levels: Mapping[str, int],
    limit: int,
) -> dict[Address, list[DuplicateCount]]:
    """The answers by copy, those of nothing left out. An origin that cannot be asked is answered with a reason; nothing is raised.

    `limit` bounds the reads of each.
    """
    asked = list(asked)
    await pool.open(
        domains[address.domain].connection
        for one in asked
        for address in (one.downstream, one.origin)
        if address is not None
    )

    async def one(question: DuplicateRequest) -> DuplicateCount:
        if question.origin is None or question.origin.domain not in domains:
            return DuplicateCount(question, 0, None, reason="the files do not say where it is")
        try:
            api = pool.api(domains[question.origin.domain])
            return await _count_for_request(
                api, pool.api(domains[question.downstream.domain]), question, levels, limit
            )
        except (ApiError, ConnectError) as error:
            return DuplicateCount(question, 0, None, reason=str(error))

    found: dict[Address, list[DuplicateCount]] = {}
    for answer in await asyncio.gather(*map(one, asked)):
        if answer.at_most != 0:
            found.setdefault(answer.request.downstream, []).append(answer)
    return found


async def _count_for_request(
    api: DomainApi,
    copies: DomainApi,
    asked: DuplicateRequest,
    levels: Mapping[str, int],
    limit: int,
) -> DuplicateCount:
    assert asked.origin is not None
    level = levels.get(asked.origin.domain, 0)
    info = await api.stream_info(asked.origin.stream)
    if info is None:
        return DuplicateCount(asked, 0, 0)
    reader = await open_reader(api, info, level, limit)
    after, certain = (
        (0, True)
        if asked.recreated
        else await _last_sourced_seq(copies, asked, levels.get(asked.downstream.domain, 0), limit)
    )
    state = info["state"]
    try:
        start = max(state["first_seq"], asked.start_seq, after + 1)
        if asked.start_time:
            first = await reader.find_first_since(
                asked.start_time, by_time=level >= TIME_LOOKUP_LEVEL
            )
            start = max(start, first.seq if first else state["last_seq"] + 1)
        found = await _count_matching(api, info, asked, start, reader, limit)
        bounds = (found if certain and not asked.starts_later else 0, found)
    except ReadLimitExceeded:
        bounds = (0, int(state["messages"]))
    return DuplicateCount(
        asked, *bounds, as_of={"last_seq": state["last_seq"], "time": state.get("last_ts")}
    )


async def count_skipped(
    origins: DomainApi, copies: DomainApi, asked: DuplicateRequest, limit: int
) -> int | None:
    """How many messages of the origin a source still has before it; None where nobody can tell. Raises ApiError."""
    return (await _count_for_request(origins, copies, asked, {}, limit)).at_most


async def _count_matching(
    api: DomainApi,
    info: Mapping[str, Any],
    asked: DuplicateRequest,
    start: int,
    reader: MessageReader,
    limit: int,
) -> int:
    """Messages from a sequence on that both take. Raises TooManyReads and ApiError."""
    state = info["state"]
    if start > state["last_seq"]:
        return 0
    if start <= state["first_seq"]:
        if ">" in asked.subjects and ">" in asked.other_subjects:
            return int(state["messages"])
        counts = await count_by_subject(api, info, reader.budget, 10 * limit)
        if counts is not None:
            return sum(
                count for subject, count in counts.items() if _is_taken_by_both(asked, subject)
            )
    found = 0
    async for message in reader.read_forward(start):
        found += _is_taken_by_both(asked, message.subject)
    return found


def _is_taken_by_both(asked: DuplicateRequest, subject: str) -> bool:
    return is_covered(subject, asked.subjects) and is_covered(subject, asked.other_subjects)


async def _last_sourced_seq(
    api: DomainApi, asked: DuplicateRequest, level: int, limit: int
) -> tuple[int, bool]:
    """The last sequence of the origin that the copy holds of exactly this source, and whether everything told here is certain."""
    info = await api.stream_info(asked.downstream.stream)
    if info is None:
        return 0, False
    reader = await open_reader(api, info, level, limit)
    certain = all(
        not source.get("lag") and source.get("active", -1) >= 0 for source in _origin_infos(info)
    )
    try:
        async for message in reader.read_backward():
            seq = _parse_header_seq(message.source, asked.header)
            if seq:
                return seq, certain
    except (ReadLimitExceeded, ApiError):
        return 0, False
    return 0, certain


def _origin_infos(info: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the copy copies now, as INFO shows it; one that lags has not had everything yet."""
    return [one for one in (info.get("mirror"), *(info.get("sources") or ())) if one]


def _parse_header_seq(header: str, wanted: tuple[str, str, str]) -> int:
    """The sequence in a message's `Nats-Stream-Source`, 0 where that is missing or another source's."""
    words = header.split(" ")
    if len(words) < 4 or (words[0], words[2], words[3]) != wanted:
        return 0
    return int(words[1]) if words[1].isdigit() else 0
