"""The time window of a running backfill: wait for it, stop in time, and merge results.

While a run waits it holds no lock, no connection and no Spark.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from jsplan.errors import ExitCode
from jsplan.planning.backfill.windows import Deadline, Window, describe_opening
from jsplan.units import SECOND, format_duration

if TYPE_CHECKING:
    from jsplan.config.model import Backfill
    from jsplan.documents.backfill import BackfillResult, OriginResult
    from jsplan.options import Observer
    from jsplan.planning.backfill.windows import Clock

#: Portions of a window at the rate of the entry, and the bytes of a portion without a rate.
PORTIONS_PER_WINDOW, PORTION_BYTES = 8, 64 << 20
#: Seconds between checks of the clock: a machine may sleep, or its clock be set.
CLOCK_CHECK_SECONDS: Final = 60.0


def is_window_open(entry: Backfill, clock: Clock) -> bool:
    """Check whether messages of an entry may be copied now."""
    return entry.window is None or Window.parse(entry.window).closes_at(clock.now()) is not None


async def wait_until_open(entry: Backfill, clock: Clock, observer: Observer) -> None:
    """Wait until the window of the entry is open, and report the opening time."""
    if entry.window is None:
        return
    window, reported = Window.parse(entry.window), ""
    while window.closes_at(now := clock.now()) is None:
        if (opening := describe_opening(window, now)) != reported:
            left = format_duration(max(1, round(window.opens_at(now) - now)) * SECOND)
            observer.phase(f"{entry.name} waits for its window, {opening} (in {left})")
            reported = opening
        await asyncio.sleep(clock.sleep_for(min(CLOCK_CHECK_SECONDS, window.opens_at(now) - now)))


async def wait_past(deadline: Deadline | None) -> None:
    """Wait until a window has closed by the local clock: that of a worker may be ahead."""
    while deadline is not None and (left := deadline.at - deadline.clock.now()) > 0:  # noqa: ASYNC110 - a clock is no event
        await asyncio.sleep(deadline.clock.sleep_for(min(CLOCK_CHECK_SECONDS, left)))


def find_deadline(entry: Backfill, clock: Clock) -> Deadline | None:
    """Return the end of the window; now if it is closed, None without one."""
    if entry.window is None:
        return None
    now = clock.now()
    return Deadline(Window.parse(entry.window).closes_at(now) or now, clock)


def compute_byte_budget(entry: Backfill) -> int | None:
    """Return the bytes of one portion, which is lost if the window closes; None without one."""
    if entry.window is None:
        return None
    return (
        max(1, entry.rate * Window.parse(entry.window).seconds // PORTIONS_PER_WINDOW)
        if entry.rate
        else PORTION_BYTES
    )


def describe_closed_window(entry: Backfill, clock: Clock) -> str | None:
    """Describe a closed window, its opening and what to do; None if it is open or absent."""
    if entry.window is None or is_window_open(entry, clock):
        return None
    opens = describe_opening(Window.parse(entry.window), clock.now())
    return (
        f"outside of its window ({entry.window}, which {opens} by this machine's clock); "
        "the next apply inside of it runs it, or let it wait for that: "
        f"jsplan backfill run {entry.name}"
    )


def describe_interrupted_run(entry: Backfill, result: BackfillResult) -> str:
    """Describe an entry whose window closed during an apply."""
    return (
        f"its window ({entry.window}) closed after {result.copied:,} messages of this run; "
        "the next apply inside of it resumes it, or let it wait for that: "
        f"jsplan backfill run {entry.name}"
    )


def merge_results(
    before: BackfillResult | None, after: BackfillResult, *, fail_on_gap: bool
) -> BackfillResult:
    """Merge the results of several windows; gaps and skipped messages are those of the last."""
    if before is None:
        return after
    known = {(origin.origin, origin.target): origin for origin in before.origins}
    for origin in after.origins:
        if (earlier := known.get((origin.origin, origin.target))) is not None:
            _add_earlier_result(origin, earlier)
    present = {(origin.origin, origin.target) for origin in after.origins}
    after.origins += [origin for key, origin in known.items() if key not in present]
    after.exit_code = int(ExitCode.CHANGES if after.gap_messages and fail_on_gap else ExitCode.OK)
    return after


def _add_earlier_result(origin: OriginResult, earlier: OriginResult) -> None:
    if not origin.copied:
        origin.verified, origin.path = earlier.verified, earlier.path
    origin.copied, origin.bytes = origin.copied + earlier.copied, origin.bytes + earlier.bytes
    origin.seconds, origin.attempts, origin.windows = (
        origin.seconds + earlier.seconds,
        origin.attempts + earlier.attempts,
        origin.windows + earlier.windows,
    )
