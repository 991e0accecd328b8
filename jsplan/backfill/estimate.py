"""About how long a copy takes: at the rate that one between the same domains had, else assuming one. Pure; a guess."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from jsplan.backfill.model import OriginState
from jsplan.backfill.strategy import Strategy
from jsplan.backfill.windows import Window, count_windows
from jsplan.config.model import Backfill
from jsplan.units import format_bytes

_MIB: Final = 1 << 20
#: Messages and bytes per second of a copy between servers of a small machine, and the seconds before it begins: Spark has to start.
ASSUMED_RATES: Final[Mapping[Strategy, tuple[int, int, int]]] = {
    "spark": (60_000, 60 * _MIB, 10), "native": (100_000, 80 * _MIB, 0), "snapshot": (150_000, 100 * _MIB, 0)
}  # fmt: skip
#: A copy of fewer messages says nothing of how fast one is.
MIN_SAMPLE_MESSAGES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """About so many seconds; `basis` says what that rests on."""

    seconds: float
    basis: str

    def to_json(self) -> dict[str, Any]:
        """The value of `estimate_copy`."""
        return {"seconds": round(self.seconds, 1), "basis": self.basis}


def estimate_backfill(
    entry: Backfill,
    strategy: Strategy,
    messages: int,
    size: int,
    past: Iterable[OriginState],
    now: float,
) -> Estimate:
    """The time that an entry takes for so many messages and bytes, `now` being seconds since 1970: inside of its window, if it has one."""
    pairs = {(side.domain, entry.target.domain) for side in entry.origins}
    found = estimate_copy(strategy, messages, size, entry.rate, pairs, past)
    if entry.window is None:
        return found
    window = Window.parse(entry.window)
    count = count_windows(window, found.seconds, now)
    inside = (
        f"inside of {entry.window}, which takes {count} windows"
        if count > 1
        else f"inside of {entry.window}"
    )
    return Estimate(found.seconds, f"{found.basis}; {inside}")


def estimate_copy(
    strategy: Strategy,
    messages: int,
    size: int,
    rate: int | None,
    pairs: set[tuple[str, str]],
    past: Iterable[OriginState],
) -> Estimate:
    """The time for so many messages and bytes. `rate` is bytes per second (None: as fast as it goes); `pairs` are the domains between
    which it goes, `past` what was copied before.
    """
    alike = [
        leg
        for leg in past
        if leg.strategy == strategy
        and _domain_pair(leg) in pairs
        and leg.copied >= MIN_SAMPLE_MESSAGES
        and leg.seconds > 0
    ]
    per_second, bytes_per_second, start = ASSUMED_RATES[strategy]
    if alike:
        last = alike[-1]
        per_second = max(1, round(last.copied / last.seconds))
        seconds, basis = (
            messages / per_second,
            f"at {per_second:,} messages/s, as {last.origin} was copied to {last.target}",
        )
    else:
        seconds = max(messages / per_second, size / bytes_per_second)
        basis = f"assuming {per_second:,} messages/s and {format_bytes(bytes_per_second)}/s"
    if rate is not None and size / rate > seconds:
        seconds, basis = size / rate, f"at `rate: {format_bytes(rate)}/s`"
    return Estimate(
        seconds + start, f"{basis}, and {start}s for Spark to start" if start else basis
    )


def _domain_pair(leg: OriginState) -> tuple[str, str]:
    return leg.origin.partition("/")[0], leg.target.partition("/")[0]
