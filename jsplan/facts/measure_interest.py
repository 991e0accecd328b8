"""Bounds of what is deleted because no consumer wants it, any more or from now on."""

from __future__ import annotations

from jsplan.documents.deletions import DeletionRequest
from jsplan.errors import ApiError
from jsplan.facts.interest import StoredCounts, bound_unwanted, count_finished, empties_stream
from jsplan.facts.measured_stream import MeasuredStream
from jsplan.facts.measurement import Measurement
from jsplan.facts.messages import ReadLimitExceeded
from jsplan.resources.server_features import NO_CONSUMERS_LEVEL, PURGE_LEVEL


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
        most = 0 if becomes and stream.level < NO_CONSUMERS_LEVEL else stream.messages
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
    try:
        known = await stream.read_subject_counts()
    except (ReadLimitExceeded, ApiError):
        known = False
    gaps = stream.reader.gaps
    return StoredCounts(
        stream.messages,
        int(stream.state["first_seq"]),
        int(stream.state["last_seq"]),
        stream.counts if known else None,
        tuple(gaps) if gaps is not None else None,
    )
