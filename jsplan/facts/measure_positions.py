"""Measurement of what a consumer gets twice, or never, with another position or filter."""

from __future__ import annotations

import dataclasses

from jsplan.errors import ApiError
from jsplan.facts.measured_stream import MeasuredStream
from jsplan.facts.measurement import Measurement
from jsplan.facts.messages import ReadLimitExceeded
from jsplan.facts.redelivery import Redelivery, StoredBetween, max_unread, redelivery_bounds
from jsplan.facts.undelivered import FilterChange, UndeliveredWalk


async def measure_redelivered(stream: MeasuredStream, span: Redelivery) -> Measurement:
    """Measure the stored messages between position and last delivery that are not pending."""
    first = max(span.floor + 1, int(stream.state["first_seq"]))
    last, between = min(span.delivered, stream.reader.last), StoredBetween()
    anchored = int(stream.state["first_seq"]) <= span.floor
    try:
        async for message in dataclasses.replace(stream.reader, last=last).read_forward(first):
            between.count(message.subject, span)
    except (ReadLimitExceeded, ApiError):
        stored, gaps = max(0, last - first + 1), stream.reader.gaps
        stored -= sum(first <= gap <= last for gap in gaps or ())
        missing = span.delivered - span.floor - (0 if gaps is None else stored)
        return stream.result(
            (0, max_unread(span, stored, missing=missing, anchored=anchored)),
            (0, 0),
            ["position", span.consumer],
        )
    missing = span.delivered - span.floor - between.total
    return stream.result(
        redelivery_bounds(span, between, missing=missing, anchored=anchored),
        (0, 0),
        ["position", span.consumer],
    )


async def measure_undelivered(stream: MeasuredStream, change: FilterChange) -> Measurement:
    """Measure what a changed filter leaves undelivered. Subjects show where that is nothing."""
    try:
        known = await stream.read_subject_counts()
    except (ReadLimitExceeded, ApiError):
        known = False
    most = (
        sum(n for subject, n in stream.counts.items() if change.may_count(subject))
        if known
        else stream.messages
    )
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
