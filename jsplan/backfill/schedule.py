"""What a run does about the window of its entry: wait until it opens, know when it closes, and put together what several windows brought.

While it waits nothing is held: no lock, no connection, no Spark.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from jsplan.backfill.seq_ranges import MAX_SEQ
from jsplan.backfill.windows import Deadline, Window, describe_opening
from jsplan.errors import ExitCode
from jsplan.units import SECOND, format_duration

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from jsplan.backfill.pending import PendingRanges
    from jsplan.backfill.windows import Clock
    from jsplan.config.model import Backfill
    from jsplan.documents.backfill import BackfillResult, OriginResult
    from jsplan.options import Observer

#: Of what passes in a window at the entry's rate one portion is this part; without a rate it has so many bytes.
PORTIONS_PER_WINDOW, PORTION_BYTES = 8, 64 << 20
#: The clock is looked at again after so many seconds: a machine may sleep, or its clock be set.
CLOCK_CHECK_SECONDS: Final = 60.0


def is_window_open(entry: Backfill, clock: Clock) -> bool:
    """Whether messages of an entry may be copied now."""
    return entry.window is None or Window.parse(entry.window).closes_at(clock.now()) is not None


async def wait_until_open(entry: Backfill, clock: Clock, observer: Observer) -> None:
    """Wait until the entry's window is open, telling when that is."""
    if entry.window is None:
        return
    window, told = Window.parse(entry.window), ""
    while window.closes_at(now := clock.now()) is None:
        if (words := describe_opening(window, now)) != told:
            left = format_duration(max(1, round(window.opens_at(now) - now)) * SECOND)
            observer.phase(f"{entry.name} waits for its window, {words} (in {left})")
            told = words
        await asyncio.sleep(clock.sleep_for(min(CLOCK_CHECK_SECONDS, window.opens_at(now) - now)))


async def wait_past(deadline: Deadline | None) -> None:
    """Wait until a window has closed by our clock as well: a worker's may be some time ahead."""
    while deadline is not None and (left := deadline.at - deadline.clock.now()) > 0:  # noqa: ASYNC110 - a clock is no event
        await asyncio.sleep(deadline.clock.sleep_for(min(CLOCK_CHECK_SECONDS, left)))


def find_deadline(entry: Backfill, clock: Clock) -> Deadline | None:
    """When copying stops; at once where the window is closed, never without one."""
    if entry.window is None:
        return None
    now = clock.now()
    return Deadline(Window.parse(entry.window).closes_at(now) or now, clock)


def compute_byte_budget(entry: Backfill) -> int | None:
    """So many bytes at most an entry with a window copies in one go, where what is begun and not ended is lost when that closes."""
    if entry.window is None:
        return None
    return (
        max(1, entry.rate * Window.parse(entry.window).seconds // PORTIONS_PER_WINDOW)
        if entry.rate
        else PORTION_BYTES
    )


def split_by_budget(
    todos: Sequence[PendingRanges], most: int | None
) -> Iterator[list[PendingRanges]]:
    """The same with at most so many sequences in one part: each is copied as a whole before the next is read."""
    left = list(todos)
    while most is not None and sum(todo.messages for todo in left) > most:
        room = most
        part: list[PendingRanges] = []
        for number, todo in enumerate(left):
            cut = _find_budget_end(todo, room)
            part.append(todo.restrict(0, cut))
            left[number], room = todo.restrict(cut + 1, MAX_SEQ), max(0, room - part[-1].messages)
        yield part
    yield left


def _find_budget_end(todo: PendingRanges, most: int) -> int:
    """Up to which sequence there are so many."""
    for span in todo.spans:
        if span.size > most:
            return span.first + most - 1
        most -= span.size
    return MAX_SEQ


def describe_closed_window(entry: Backfill, clock: Clock) -> str | None:
    """That an entry is outside of its window, when that opens and what to do then; None where it is open, or there is none."""
    if entry.window is None or is_window_open(entry, clock):
        return None
    opens = describe_opening(Window.parse(entry.window), clock.now())
    return (
        f"outside of its window ({entry.window}, which {opens} by this machine's clock); the next apply inside of it runs it, or let it "
        f"wait for that: jsplan backfill run {entry.name}"
    )


def describe_interrupted_run(entry: Backfill, result: BackfillResult) -> str:
    """What an apply says of an entry whose window closed while it was copied."""
    return (
        f"its window ({entry.window}) closed after {result.copied:,} messages of this run; the next apply inside of it goes on, or let it "
        f"wait for that: jsplan backfill run {entry.name}"
    )


def merge_results(
    before: BackfillResult | None, after: BackfillResult, *, fail_on_gap: bool
) -> BackfillResult:
    """What several windows brought, as one result: gaps and what is left out are those that the last one found."""
    if before is None:
        return after
    known = {(leg.origin, leg.target): leg for leg in before.origins}
    for leg in after.origins:
        if (earlier := known.get((leg.origin, leg.target))) is not None:
            _add_earlier_result(leg, earlier)
    there = {(leg.origin, leg.target) for leg in after.origins}
    after.origins += [leg for key, leg in known.items() if key not in there]
    after.exit_code = int(ExitCode.CHANGES if after.gap_messages and fail_on_gap else ExitCode.OK)
    return after


def _add_earlier_result(leg: OriginResult, earlier: OriginResult) -> None:
    if not leg.copied:
        leg.verified, leg.path = earlier.verified, earlier.path
    leg.copied, leg.bytes, leg.natively = (
        leg.copied + earlier.copied,
        leg.bytes + earlier.bytes,
        leg.natively + earlier.natively,
    )
    leg.seconds, leg.attempts, leg.windows = (
        leg.seconds + earlier.seconds,
        leg.attempts + earlier.attempts,
        leg.windows + earlier.windows,
    )
