"""The estimated time of a copy, from the rate of an earlier one or from an assumed rate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from jsplan.config.model import Backfill
from jsplan.documents.parts import Estimate
from jsplan.planning.backfill.model import OriginState
from jsplan.planning.backfill.strategy import METHODS, Strategy
from jsplan.units import format_bytes

#: Copies of fewer messages are not used as samples.
MIN_SAMPLE_MESSAGES: Final = 10_000


def estimate_backfill(
    entry: Backfill, strategy: Strategy, messages: int, size: int, past: Iterable[OriginState]
) -> Estimate:
    """Estimate the time of an entry for these messages and bytes; `past` are earlier copies."""
    pairs = {(side.domain, entry.target.domain) for side in entry.origins}
    samples = [
        origin
        for origin in past
        if origin.strategy == strategy
        and (origin.origin.partition("/")[0], origin.target.partition("/")[0]) in pairs
        and origin.copied >= MIN_SAMPLE_MESSAGES
        and origin.seconds > 0
    ]
    per_second, bytes_per_second, start = METHODS[strategy]
    if samples:
        last = samples[-1]
        per_second = max(1, round(last.copied / last.seconds))
        seconds = messages / per_second
        basis = f"at {per_second:,} messages/s, as {last.origin} was copied to {last.target}"
    else:
        seconds = max(messages / per_second, size / bytes_per_second)
        basis = f"assuming {per_second:,} messages/s and {format_bytes(bytes_per_second)}/s"
    rate = entry.rate
    if rate is not None and size / rate > seconds:
        seconds, basis = size / rate, f"at `rate: {format_bytes(rate)}/s`"
    basis += f", and {start}s for Spark to start" if start else ""
    return Estimate(round(seconds + start, 1), basis)
