"""Copies inside of a window: runs wait for it, and applies defer what is outside."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from jsplan.errors import RefusedError
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions, plan
from tests.backfill.backfill_pair import (
    Pair,
    create_bulk_stream,
    numbered_rows,
    read_all,
    without_spark,
)
from tests.backfill.fake_clocks import SkewedClock, SteppingClock, local_time
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)
HOUR = 3600.0
WINDOW = "01:00-05:00"
COUNT = 15_000


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf without a stream; an entry copies `S` into `T` at night."""
    return Pair.create(tmp_path, clean_hub_leaf, window=WINDOW)


def require_all(pair: Pair, count: int) -> None:
    """Require all messages in the target once, in order, and nothing left."""
    assert [
        int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    ] == list(range(1, count + 1))
    pair.require_nothing_left()


def test_a_run_waits_for_its_window(pair: Pair) -> None:
    """A run prints when its window opens, holds no lock while it waits, and then copies."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    clock, observer = SteppingClock(local_time("21:30")), RecordingObserver()

    found = pair.run(observer=observer, clock=clock)

    assert (found.copied, found.windows) == (20, 1)
    assert observer.texts[0] == "x waits for its window, opens 01:00 (in 3h30m)"
    assert clock.display_time == "01:00"
    pair.require_copied()


def test_inside_of_the_window_a_run_does_not_wait(pair: Pair) -> None:
    """A run inside of its window does not wait, also after midnight."""
    pair.write_entry(window="22:00-04:00")
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    clock = SteppingClock(local_time("03:59"))

    assert pair.run(clock=clock).copied == 20
    assert clock.display_time == "03:59"
    pair.require_copied()


def test_a_copy_over_several_windows(pair: Pair) -> None:
    """A closing window promotes and compares what was copied, and the next one continues.

    Each message is copied once, in order, and none is read outside of the window.
    """
    create_bulk_stream(pair.sandbox["leaf"], "S", COUNT, size=1000)
    pair.stream("hub", "T")
    pair.delete("leaf", "S", 7, COUNT)
    clock, observer = SteppingClock(local_time("01:00"), step=HOUR), RecordingObserver()

    found = pair.run(observer=observer, clock=clock)

    assert found.windows == 2
    assert (found.copied, found.verified, found.gaps, found.gap_messages) == (
        COUNT - 2,
        True,
        [[7, 7], [COUNT, COUNT]],
        2,
    )
    assert "x waits for its window, opens 01:00 (in 19h)" in observer.texts
    rows = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    assert [int(data.split()[0]) for *_, data in rows] == [n for n in range(1, COUNT) if n != 7]
    assert pair.state_record["origins"][0]["copied"] == COUNT - 2
    assert pair.state_record["done_at"]
    pair.require_nothing_left()


def test_between_two_windows_nothing_is_held(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two windows the lock is free, and the target has what was copied so far."""
    create_bulk_stream(pair.sandbox["leaf"], "S", COUNT, size=1000)
    pair.stream("hub", "T")
    seen: list[tuple[int, bool, int]] = []

    class InspectingClock(SteppingClock):
        def sleep_for(self, seconds: float) -> float:
            if seen:
                return super().sleep_for(seconds)
            lock = pair.space.folder / "state" / "test.json.lock"
            streams = [
                name
                for name in pair.ask("hub", "STREAM.NAMES")["streams"]
                if name.startswith("JSPLAN_")
            ]
            seen.append((pair.state("hub", "T")["messages"], _is_free(lock), len(streams)))
            return super().sleep_for(seconds)

    pair.run(clock=InspectingClock(local_time("01:00"), step=HOUR))

    assert seen
    assert all(0 < messages < COUNT and free and not left for messages, free, left in seen)
    require_all(pair, COUNT)


def _is_free(lock: Path) -> bool:
    from filelock import FileLock, Timeout  # noqa: PLC0415

    try:
        with FileLock(lock, timeout=0):
            return True
    except Timeout:
        return False


def test_a_window_that_closes_before_anything_is_read(pair: Pair) -> None:
    """A window that closes before any message is read leaves the copy to the next one."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")

    class SlowStartClock(SteppingClock):
        def now(self) -> float:
            if threading.current_thread() is not threading.main_thread() and not self.readings:
                self.time += HOUR  # the window closes before the first read
            return super().now()

    found = pair.run(clock=SlowStartClock(local_time("04:30")))

    assert (found.copied, found.windows) == (20, 2)
    pair.require_copied()


def test_dying_before_any_write_of_two_windows(pair: Pair) -> None:
    """A run that dies in any window is completed by the next, once and in order."""
    count = 8_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count, size=1000)
    for after in (0, 3, 6, 8, 10, 12):  # eight of the first window, then those of the second
        pair.stream("hub", "T")
        with kill_after(after), pytest.raises(SimulatedKill):
            pair.run(clock=SteppingClock(local_time("01:00"), step=3 * HOUR, max_steps=2))

        pair.run(clock=SteppingClock(local_time("01:00")))

        require_all(pair, count)
        pair.ask("hub", "STREAM.DELETE.T")
        (pair.space.folder / "state" / "test.json").unlink()


def test_a_changed_entry_counts_from_the_next_window_on(pair: Pair) -> None:
    """A changed window or rate applies from the next window on, without a new range."""
    create_bulk_stream(pair.sandbox["leaf"], "S", COUNT, size=1000)
    pair.stream("hub", "T")

    class EditingClock(SteppingClock):
        def sleep_for(self, seconds: float) -> float:
            if "rate" not in pair.entry:
                pair.write_entry(window="12:00-13:00", rate="1GB/s")
            return super().sleep_for(seconds)

    clock = EditingClock(local_time("01:00"), step=HOUR)
    found = pair.run(clock=clock)

    assert found.windows >= 2
    assert "12:00" <= clock.display_time < "13:00"
    require_all(pair, COUNT)


def test_a_plan_shows_the_window(pair: Pair) -> None:
    """A plan shows the window in its reason, and the number of windows in its estimate."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")

    found = plan(pair.space.load, BackfillOptions("x", clock=SteppingClock(local_time("12:00"))))
    listed = pair.space.plan().backfills[0]

    hours = "; only from 01:00 to 05:00, by the clock of the machine that runs it"
    assert found.reason.endswith(hours)
    assert listed["reason"].endswith(hours)
    assert found.estimate is not None
    assert found.estimate["basis"].endswith("; inside of 01:00-05:00")
    assert listed["estimate"]["basis"].endswith("; inside of 01:00-05:00")


@pytest.mark.parametrize("strategy", ["native", "snapshot"])
def test_what_cannot_be_paused_is_refused(pair: Pair, strategy: str) -> None:
    """A strategy that cannot be paused is refused with a window, and `auto` uses Spark."""
    pair.stream("leaf", "S", numbered_rows(20))
    pair.stream("hub", "T")
    pair.write_entry(window=WINDOW, strategy=strategy, mode="exact")

    with pytest.raises(RefusedError, match="cannot be paused when the window closes"):
        pair.run(clock=SteppingClock(local_time("02:00")))
    pair.write_entry(window=WINDOW, mode="exact")

    assert pair.run(clock=SteppingClock(local_time("02:00"))).path.startswith("spark")


def test_apply_defers_what_is_outside_of_its_window(pair: Pair) -> None:
    """An apply outside of the window defers the copy, and one inside of it copies."""
    pair.stream("leaf", "S", numbered_rows(20))
    streams = [{"name": "T", "domain": "hub", "subjects": ["t.>"]}]
    pair.space.write(streams=streams, backfills=[pair.entry])

    _, left = pair.space.apply(clock=SteppingClock(local_time("12:00")))

    assert left.exit_code == 0
    assert left.backfills == [
        {
            "name": "x",
            "status": "deferred",
            "error": "outside of its window (01:00-05:00, which opens 01:00 by this machine's clock); the next apply inside of it runs it, "
            "or let it wait for that: jsplan backfill run x",
        }
    ]
    assert pair.space.plan().has_changes
    with without_spark():
        _, done = pair.space.apply(clock=SteppingClock(local_time("02:00")))
    assert [(one["status"], one["copied"]) for one in done.backfills] == [("done", 20)]
    pair.require_copied()
    assert not pair.space.plan().has_changes


def test_apply_defers_the_rest_when_the_window_closes(pair: Pair) -> None:
    """A window that closes during an apply defers the rest to the next apply."""
    create_bulk_stream(pair.sandbox["leaf"], "S", COUNT, size=1000)
    pair.space.write(
        streams=[{"name": "T", "domain": "hub", "subjects": ["t.>"]}], backfills=[pair.entry]
    )

    with without_spark():
        _, left = pair.space.apply(clock=SteppingClock(local_time("02:00"), step=HOUR))
    there = pair.state("hub", "T")["messages"]

    deferred = left.backfills[0]
    assert (left.exit_code, deferred["status"], deferred["copied"]) == (0, "deferred", there)
    assert 0 < there < COUNT
    assert deferred["error"].startswith(
        f"its window (01:00-05:00) closed after {there:,} messages of this run; the next apply inside of it resumes it"
    )
    assert pair.space.plan().has_changes
    with without_spark():
        _, done = pair.space.apply(clock=SteppingClock(local_time("02:00")))
    assert [(one["status"], one["copied"]) for one in done.backfills] == [("done", COUNT - there)]
    require_all(pair, COUNT)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("entry", [{}, {"order": "none"}, {"order": "subject"}])
def test_workers_of_spark_keep_the_window(pair: Pair, entry: dict[str, Any]) -> None:
    """Workers stop at the deadline, also with a clock that is ahead.

    The next window does not begin before this one is over by the clock of the driver.
    """
    count = 20_000
    create_bulk_stream(pair.sandbox["leaf"], "S", count)
    pair.stream("hub", "T")
    pair.write_entry(window=WINDOW, **entry)

    found = backfill.run(
        pair.space.load,
        BackfillOptions("x", clock=SkewedClock(local_time("01:00"), 5 * HOUR)),
        RecordingObserver(),
    )

    assert [(origin.copied, origin.windows) for origin in found.origins] == [(count, 2)]
    assert sorted(
        int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    ) == list(range(1, count + 1))
    pair.require_nothing_left()
