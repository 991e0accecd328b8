"""Partitions, fleets and archives inside of a window: the next window continues the copy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jsplan.backfill.pending_ranges import PendingRanges, split_by_budget
from jsplan.backfill.tasks.origin_task import ExistingMessages
from jsplan.planning.backfill.model import SeqRange
from tests.backfill.backfill_pair import Pair, create_bulk_stream, read_all
from tests.backfill.fake_clocks import SteppingClock, local_time
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)
HOUR = 3600.0
WINDOW: dict[str, Any] = {"window": "01:00-05:00"}
COUNT = 20_000


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf with 20 MB in `S` of the leaf; an entry copies them into `T` at night."""
    found = Pair.create(tmp_path, clean_hub_leaf, **WINDOW)
    create_bulk_stream(found.sandbox["leaf"], "S", COUNT, size=1000)
    return found


def closing_clock() -> SteppingClock:
    """Return a clock that closes the first window after a few readings, and no other."""
    return SteppingClock(local_time("01:00"), step=HOUR, max_steps=5)


def target_numbers(pair: Pair) -> list[int]:
    """Return the numbers in the target, in order."""
    return [int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")]


def test_partitions_that_go_through_the_shuffle(pair: Pair) -> None:
    """Partitions of a shuffle are copied in portions, in order of each subject.

    A window that closes costs at most one portion.
    """
    pair.stream("hub", "T")
    # An eighth of what passes at this rate is 9 MB: three portions.
    pair.write_entry(order="subject", rate="5KB/s", **WINDOW)
    with pytest.MonkeyPatch.context() as patch:
        # This test needs the portions of the rate, not its waits.
        patch.setattr("jsplan.backfill.tasks.origin_task.RateLimiter.throttle", lambda *_: None)
        observer = RecordingObserver()
        found = pair.run(observer=observer, clock=closing_clock())

    assert (found.copied, found.verified, found.gaps) == (COUNT, True, [])
    assert found.windows == 2
    assert target_numbers(pair) == list(range(1, COUNT + 1))  # there is one subject
    assert sum(text.startswith("Copying") for text in observer.texts) >= 4
    pair.require_nothing_left()


def test_partitions_that_read_for_themselves(pair: Pair) -> None:
    """Messages that partitions have staged when the window closes are promoted, not read again."""
    pair.stream("hub", "T")
    pair.write_entry(order="none", **WINDOW)

    found = pair.run(clock=closing_clock())

    assert (found.copied, found.windows) == (COUNT, 2)
    assert sorted(target_numbers(pair)) == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_a_fleet(pair: Pair) -> None:
    """Two origins are copied over two windows, each once and in its order."""
    create_bulk_stream(pair.sandbox["hub"], "HERE", COUNT, size=1000)
    pair.stream("hub", "T")
    pair.entry = pair.entry | {
        "from": [{"domain": "hub", "stream": "HERE"}, {"domain": "leaf", "stream": "S"}]
    }
    pair.space.write(backfills=[pair.entry])

    found = pair.result(clock=closing_clock())

    assert [(origin.copied, origin.windows) for origin in found.origins] == [(COUNT, 2), (COUNT, 2)]
    rows = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    for subject in (b"s.x", b"here.x"):
        assert [int(data.split()[0]) for _, stored, _, data in rows if stored == subject] == list(
            range(1, COUNT + 1)
        )
    pair.require_nothing_left()


def test_archive_round_trip_over_two_windows(pair: Pair) -> None:
    """Finished chunks of an archive survive the window, and the archive comes back whole."""
    pair.stream("hub", "T")
    pair.write_entry(rate="2KB/s", **WINDOW)
    out: dict[str, Any] = {
        "name": "x",
        "from": {"domain": "leaf", "stream": "S"},
        "to": {"parquet": "archive"},
        "rate": "2KB/s",
    } | WINDOW
    pair.space.write(backfills=[out])
    observer = RecordingObserver()
    with pytest.MonkeyPatch.context() as patch:
        # The rate makes chunks small; the test does not wait for it.
        patch.setattr("jsplan.backfill.tasks.archive_writer.time.sleep", lambda _: None)
        found = pair.run(observer=observer, clock=closing_clock())

    assert (found.copied, found.windows, found.verified) == (COUNT, 2, True)
    assert pq.read_table(pair.space.folder / "archive", columns=["seq"]).num_rows == COUNT
    assert any(text.startswith("Resuming with") for text in observer.texts)
    pair.space.write(
        backfills=[
            {"name": "x", "from": {"parquet": "archive"}, "to": {"domain": "hub", "stream": "T"}}
            | WINDOW
        ]
    )

    back = pair.run(clock=SteppingClock(local_time("01:00"), step=4 * HOUR, max_steps=1))

    assert (back.copied, back.windows) == (COUNT, 2)
    assert target_numbers(pair) == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_split_by_budget() -> None:
    """Portions cover all ranges in order, and none is larger than the budget."""
    todos = [
        PendingRanges((SeqRange(1, 10), SeqRange(21, 30)), ExistingMessages(), ()),
        PendingRanges((SeqRange(5, 9),), ExistingMessages(), ()),
    ]

    found = list(split_by_budget(todos, 8))

    assert [[todo.spans for todo in part] for part in found] == [
        [(SeqRange(1, 8),), ()],
        [(SeqRange(9, 10), SeqRange(21, 26)), ()],
        [(SeqRange(27, 30),), (SeqRange(5, 8),)],
        [(), (SeqRange(9, 9),)],
    ]
    assert list(split_by_budget(todos, None)) == [todos]
