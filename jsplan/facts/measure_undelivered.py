"""Measurement of what a consumer never gets with another filter."""

from __future__ import annotations

from jsplan.errors import ApiError
from jsplan.facts.measured_stream import MeasuredStream
from jsplan.facts.measurement import Measurement
from jsplan.facts.messages import ReadLimitExceeded
from jsplan.facts.undelivered import FilterChange, UndeliveredWalk


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
