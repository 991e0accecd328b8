"""Reads for the count of a reset: none where the list of deleted messages shows it."""

from __future__ import annotations

import dataclasses

from jsplan.errors import ApiError
from jsplan.facts.messages import MessageReader, ReadLimitExceeded
from jsplan.facts.reset_count import RESET_CAUSE, RangeTally, ResetCount


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
