"""Measurement of what is deleted because no consumer wants it, any more or from now on."""

from __future__ import annotations

import dataclasses

from jsplan.errors import ApiError
from jsplan.facts.interest import (
    InterestSnapshot,
    UnwantedMessages,
    apply_consumer_changes,
    empties_stream,
)
from jsplan.facts.limit_trimming import DeletionTally
from jsplan.facts.measured_stream import MeasuredStream
from jsplan.facts.measurement import FinishedConsumer, Measurement, MeasurementRequest
from jsplan.facts.messages import ReadLimitExceeded
from jsplan.resources.server_features import NO_CONSUMERS_LEVEL, PURGE_LEVEL
from jsplan.subjects import is_subset, passes_filters


async def measure_unwanted(stream: MeasuredStream, request: MeasurementRequest) -> Measurement:
    """Measure what an interest stream, or one that becomes one, deletes with a change."""
    becomes = request.interest == "becomes"
    causes = ["retention"] if becomes else ["interest"]
    everything, nothing = (stream.messages, stream.messages), (0, 0)
    consumers = await stream.read_consumers()
    stay = tuple(
        apply_consumer_changes(
            consumers,
            request.consumers,
            stream.state["last_seq"],
            stream.level,
            request.since,
            recreated=request.recreates_consumers,
        )
    )
    if (
        not becomes
        and stream.level >= PURGE_LEVEL
        and empties_stream(consumers, request.consumers, stream.state["last_seq"])
    ):
        return stream.result(everything, None, causes)
    if not stay and becomes and stream.level < NO_CONSUMERS_LEVEL:
        return stream.result(nothing, None, causes)
    if not stay and request.since is None:
        return stream.result(everything, None, causes)
    # One whose start was behind the end of the stream is said to wait for what came before it.
    if not becomes and any(
        consumer.unfinished == stream.messages
        and consumer.filters_before is None
        and consumer.floor < stream.state["first_seq"]
        for consumer in stay
    ):
        return stream.result(nothing, None, causes)
    changing = {change.name for change in request.consumers}
    floors = (consumer.floor for consumer in consumers if consumer.name in changing)
    highest = max(floors, default=0)
    unsure = 0 if becomes or request.placeholder or highest < stream.state["first_seq"] else highest
    return await _read_unwanted(
        stream,
        UnwantedMessages(
            stay,
            stream.level,
            becomes,
            stream.state["last_seq"],
            unsure,
            has_downstream=stream.has_downstream,
            acknowledged_gone=request.acknowledged_gone,
        ),
        causes,
        request.since,
    )


async def _read_unwanted(
    stream: MeasuredStream,
    walk: UnwantedMessages,
    causes: list[str],
    since: InterestSnapshot | None = None,
) -> Measurement:
    """Read to the last position of a consumer; to the end within the limit, for exact bytes."""
    whole = since is not None or (
        not walk.becomes_interest and stream.messages <= stream.budget.left
    )
    last = since.last_seq if since is not None else stream.reader.last if whole else walk.horizon
    reader = dataclasses.replace(stream.reader, last=min(stream.reader.last, last))
    try:
        known = whole or await stream.read_subject_counts()
        async for message in reader.read_forward(stream.state["first_seq"]):
            walk.visit(message)
    except (ReadLimitExceeded, ApiError):
        return stream.result((walk.at_least, stream.messages), None, causes)
    counted = known or walk.becomes_interest
    beyond = walk.count_beyond(stream.counts) if counted and not whole else 0
    hidden = walk.decide_passed(stream.counts if known else None, whole=whole)
    most = min(stream.messages, walk.at_most + beyond + hidden) if counted else stream.messages
    size = (walk.sure.bytes, walk.sure.bytes + walk.doubtful.bytes + walk.passed.bytes)
    if beyond or hidden or not counted:
        size = (size[0], stream.bytes) if most else (0, 0)
    if walk.at_least + beyond == stream.messages:
        size = (stream.bytes, stream.bytes)
    return stream.result((walk.at_least + beyond, most), size, causes)


async def measure_finished(
    stream: MeasuredStream, consumers: tuple[FinishedConsumer, ...]
) -> Measurement:
    """Measure the messages before the position of a consumer that its filters match."""
    sure, doubtful = DeletionTally(), DeletionTally()
    end = max((c.position or c.delivered + 1) - 1 for c in consumers)
    reader = dataclasses.replace(stream.reader, last=min(stream.reader.last, end))
    try:
        async for message in reader.read_forward(stream.state["first_seq"]):
            matching = [c for c in consumers if passes_filters(message.subject, c.filters)]
            if any(c.position is not None and message.seq < c.position for c in matching):
                sure.add(message)
            elif any(c.position is None and message.seq <= c.delivered for c in matching):
                doubtful.add(message)
    except (ReadLimitExceeded, ApiError):
        most = max(0, min(stream.messages, end - int(stream.state["first_seq"]) + 1))
        return stream.result((sure.messages, most), (sure.bytes, stream.bytes), ["finished"])
    most, size = sure.messages + doubtful.messages, sure.bytes + doubtful.bytes
    return stream.result((sure.messages, most), (sure.bytes, size), ["finished"])


async def measure_drained(stream: MeasuredStream, filters: tuple[str, ...]) -> Measurement:
    """Measure what a downstream stream consumes of a workqueue or interest stream."""
    if stream.config["retention"] == "limits":
        return stream.result((0, 0), None, ["origin"])
    if not filters:
        return stream.result((0, stream.messages), None, ["origin"])
    try:
        known = await stream.read_subject_counts()
    except (ReadLimitExceeded, ApiError):
        known = False
    matching = (
        sum(n for s, n in stream.counts.items() if any(is_subset(s, f) for f in filters))
        if known
        else stream.messages
    )
    return stream.result((0, matching), None, ["origin"])
