"""Measurement of what a change makes the server delete, exact or in bounds.

Uses only INFO, LIST, MSG.GET and DIRECT.GET, never a consumer, and never reads more than its limit.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable, Mapping

from msgspec.structs import replace

from jsplan.address import Address
from jsplan.config.model import Domain
from jsplan.documents.deletions import DeletionRequest
from jsplan.errors import ApiError, ConnectError
from jsplan.facts.consumer_position import RESET_CAUSE, RangeTally, ResetCount
from jsplan.facts.interest import StoredCounts, bound_unwanted, count_finished, empties_stream
from jsplan.facts.measure_limits import MeasuredStream, measure_limits
from jsplan.facts.measurement import (
    MEASURE_LIMIT,
    Answer,
    Measurement,
    MeasurementRequest,
    reduce_request,
)
from jsplan.facts.messages import MessageReader, ReadLimitExceeded, open_reader
from jsplan.facts.undelivered import FilterChange, UndeliveredWalk
from jsplan.jetstream import DomainApi, Pool
from jsplan.resources.server_features import (
    NO_CONSUMERS_LEVEL,
    PURGE_LEVEL,
    VISIBLE_CONSUMERS_LEVEL,
)

#: Concurrent measurements.
MAX_PARALLEL = 8


async def measure_deletion(
    api: DomainApi,
    request: MeasurementRequest,
    level: int,
    limit: int = MEASURE_LIMIT,
    *,
    count_only: bool = False,
) -> Measurement | None:
    """Measure one request; None when nothing would be deleted, or the stream is deleted.

    `level` is the API level of the domain. `limit` bounds the reads; where more would be needed,
    and where the server stops answering, the result is bounds. `count_only`: bytes are not needed.
    Raises ApiError when INFO of the stream fails.
    """
    info = await api.stream_info(request.stream.stream)
    if info is None or not info["state"]["messages"]:
        return None
    if isinstance(request.counts, DeletionRequest):
        counts = reduce_request(request.counts, info["state"], info["config"]["storage"])
        if counts is None:
            return None
        request = replace(request, counts=counts)
    reader = await open_reader(api, info, level, limit)
    stream = MeasuredStream(reader, request, info, level, limit, count_only=count_only)
    measurement = await _measure(stream)
    return measurement if measurement.at_most else None


async def measure_all(
    pool: Pool,
    domains: Mapping[str, Domain],
    requests: Iterable[MeasurementRequest],
    levels: Mapping[str, int],
    limit: int,
    unread: dict[Address, dict[Address, str]],
) -> dict[Address, list[Answer]]:
    """Measure each request, a few at once; return the answers by changed address.

    An origin that does not answer is added to `unread`, with the reason, under the address of its
    downstream stream. Raises ApiError when a stream that was just read does not answer any more.
    """
    requests = list(requests)
    await pool.open(domains[request.stream.domain].connection for request in requests)
    slots, answers = asyncio.Semaphore(MAX_PARALLEL), dict[Address, list[Answer]]()

    async def measure(request: MeasurementRequest) -> None:
        domain = request.stream.domain
        try:
            async with slots:
                measurement = await measure_deletion(
                    pool.api(domains[domain]), request, levels.get(domain, 0), limit
                )
        except (ApiError, ConnectError) as error:
            if not isinstance(request.counts, DeletionRequest) or request.counts.drains is None:
                raise
            unread.setdefault(request.address, {})[request.stream] = str(error)
            return
        answers.setdefault(request.address, []).append((request, measurement))

    try:
        async with asyncio.TaskGroup() as group:
            for request in requests:
                group.create_task(measure(request))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    for found in answers.values():
        found.sort(key=lambda answer: answer[1].causes if answer[1] is not None else ())
    return answers


async def _measure(stream: MeasuredStream) -> Measurement:
    match stream.request.counts:
        case ResetCount() as count:
            return stream.result(*await count_reset(stream.reader, count))
        case FilterChange() as change:
            return await measure_undelivered(stream, change)
        case DeletionRequest() as deletions:
            return await _measure_deletions(stream, deletions)


async def _measure_deletions(stream: MeasuredStream, request: DeletionRequest) -> Measurement:
    """Measure everything in the request, as one result."""
    results: list[Measurement] = []
    if request.drains is not None:
        results.append(await measure_drained(stream, request.drains))
    if request.limits.causes:
        results += await measure_limits(stream, request)
    if request.finished:
        results.append(await measure_finished(stream, request.finished))
    if request.interest:
        results.append(await measure_unwanted(stream, request))
    return _combine(stream, results)


def _combine(stream: MeasuredStream, results: list[Measurement]) -> Measurement:
    """Combine results that may overlap: at least the larger, at most the sum."""
    results = [result for result in results if result.at_most] or results
    first, *rest = results
    for other in rest:
        first = replace(
            first,
            at_least=max(first.at_least, other.at_least),
            at_most=min(stream.messages, first.at_most + other.at_most),
            least_bytes=max(first.least_bytes, other.least_bytes),
            most_bytes=min(stream.bytes, first.most_bytes + other.most_bytes),
            causes=first.causes + other.causes,
            until="",
            acknowledged=first.acknowledged + other.acknowledged,
        )
    return first


async def measure_undelivered(stream: MeasuredStream, change: FilterChange) -> Measurement:
    """Measure what a changed filter leaves undelivered. Subjects show where that is nothing."""
    most = stream.messages
    if await stream.read_subject_counts():
        most = sum(n for subject, n in stream.counts.items() if change.may_count(subject))
    walk, causes = UndeliveredWalk(change), ["filter", change.aspect]
    if not most:
        return stream.result((0, 0), None, causes)
    try:
        async for message in stream.reader.read_forward(
            max(change.start, int(stream.state["first_seq"]))
        ):
            walk.visit(message)
    except (ReadLimitExceeded, ApiError):
        return stream.result((walk.sure.messages, most), (0, 0), causes)
    return stream.result(
        (walk.sure.messages, walk.sure.messages + walk.doubtful.messages), (0, 0), causes
    )


async def count_reset(
    reader: MessageReader, count: ResetCount
) -> tuple[tuple[int, int], tuple[int, int], list[str]]:
    """Return the bounds of the messages, no bytes, and the causes of the measurement.

    Where the limit of reads is too low or the server stops answering, the least is 0.
    """
    ranges = [(max(first, reader.first), min(last, reader.last)) for first, last in count.ranges]
    most = [
        max(0, last - first + 1) - sum(first <= gap <= last for gap in reader.gaps or ())
        for first, last in ranges
    ]
    least, tally = most, RangeTally(count)
    if count.filters or reader.gaps is None:
        filled = [one for one in ranges if one[0] <= one[1]] or [(1, 0)]
        reads = dataclasses.replace(reader, last=max(last for _, last in filled))
        try:
            async for message in reads.read_forward(min(first for first, _ in filled)):
                tally.visit(message.seq, message.subject)
            least = most = tally.found
        except (ReadLimitExceeded, ApiError):
            least = [0] * len(ranges)
    return count.bounds(least, most), (0, 0), [RESET_CAUSE, count.kind]


async def measure_unwanted(stream: MeasuredStream, request: DeletionRequest) -> Measurement:
    """Bound what an interest stream, or one that becomes one, deletes with a change."""
    becomes = request.interest == "becomes"
    causes = ["retention"] if becomes else ["interest"]
    consumers = await stream.read_consumers()
    has_downstream = request.has_downstream or stream.has_downstream
    last_seq = stream.state["last_seq"]
    if (
        not becomes
        and stream.level >= PURGE_LEVEL
        and empties_stream(consumers, request.consumers, last_seq)
    ):
        found: tuple[int, int] | None = (0, stream.messages)
    else:
        found = bound_unwanted(
            await _read_counts(stream),
            consumers,
            request.consumers,
            was_interest=request.was_interest,
            keeps_others=becomes and not has_downstream,
            held=request.held,
        )
    if found is None:
        # A downstream stream that acknowledges is a consumer: what it has is deleted.
        empties = VISIBLE_CONSUMERS_LEVEL if has_downstream else NO_CONSUMERS_LEVEL
        most = 0 if becomes and stream.level < empties else stream.messages
        found = most, most
    least, most = found
    least = 0 if has_downstream or request.changes_subjects else least
    return stream.result((least, most), None, causes)


async def measure_finished(stream: MeasuredStream, names: tuple[str, ...]) -> Measurement:
    """Bound the messages that these consumers have finished."""
    consumers = [c for c in await stream.read_consumers() if c.name in names]
    return stream.result(count_finished(await _read_counts(stream), consumers), None, ["finished"])


async def measure_drained(stream: MeasuredStream, filters: tuple[str, ...]) -> Measurement:
    """Bound what a downstream stream consumes of a workqueue or interest stream."""
    if stream.config["retention"] == "limits":
        return stream.result((0, 0), None, ["origin"])
    most = (await _read_counts(stream)).matching(filters)[1]
    return stream.result((0, most), None, ["origin"])


async def _read_counts(stream: MeasuredStream) -> StoredCounts:
    """Read the messages by subject, as far as the server counts them within the limit."""
    known = await stream.read_subject_counts()
    gaps = stream.reader.gaps
    return StoredCounts(
        stream.messages,
        int(stream.state["first_seq"]),
        int(stream.state["last_seq"]),
        stream.counts if known else None,
        tuple(gaps) if gaps is not None else None,
    )
