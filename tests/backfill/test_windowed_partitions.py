"""The other ways of Spark inside of a window: lanes, fleets, archives in both directions. What closes in the middle goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jsplan.backfill.pending import PendingRanges
from jsplan.backfill.schedule import split_by_budget
from jsplan.backfill.seq_ranges import SeqRange
from jsplan.backfill.tasks.copy import ExistingMessages
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
    """Hub and leaf with 20 MB in `S` of the leaf, and an entry that copies them into `T` of the hub at night."""
    found = Pair.create(tmp_path, clean_hub_leaf, **WINDOW)
    create_bulk_stream(found.sandbox["leaf"], "S", COUNT, size=1000)
    return found


def closing_clock() -> SteppingClock:
    """A clock with which the first window closes after a few looks of whoever copies, and no other."""
    return SteppingClock(local_time("01:00"), step=HOUR, max_steps=5)


def target_numbers(pair: Pair) -> list[int]:
    """What the target has, in its order."""
    return [int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")]


def test_partitions_that_go_through_the_shuffle(pair: Pair) -> None:
    """They are copied in portions, so that a window that closes costs no more than one; each subject stays in its order."""
    pair.stream("hub", "T")
    pair.write_entry(
        order="subject", rate="5KB/s", **WINDOW
    )  # an eighth of what passes at that rate is 9 MB: three portions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "jsplan.backfill.tasks.copy.RateLimiter.throttle", lambda *_: None
        )  # the rate is not what is tried here
        observer = RecordingObserver()
        found = pair.run(observer=observer, clock=closing_clock())

    assert (found.copied, found.verified, found.gaps) == (COUNT, True, [])
    assert found.windows == 2
    assert target_numbers(pair) == list(range(1, COUNT + 1))  # there is one subject
    assert sum(text.startswith("Copying") for text in observer.texts) >= 4
    pair.require_nothing_left()


def test_partitions_that_read_for_themselves(pair: Pair) -> None:
    """What they had staged when the window closed is brought in, and not read again."""
    pair.stream("hub", "T")
    pair.write_entry(order="none", **WINDOW)

    found = pair.run(clock=closing_clock())

    assert (found.copied, found.windows) == (COUNT, 2)
    assert sorted(target_numbers(pair)) == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_a_fleet(pair: Pair) -> None:
    """Each origin in its order, everything once."""
    create_bulk_stream(pair.sandbox["hub"], "HERE", COUNT, size=1000)
    pair.stream("hub", "T")
    pair.entry = pair.entry | {
        "from": [{"domain": "hub", "stream": "HERE"}, {"domain": "leaf", "stream": "S"}]
    }
    pair.space.write(backfills=[pair.entry])

    found = pair.result(clock=closing_clock())

    assert [(leg.copied, leg.windows) for leg in found.origins] == [(COUNT, 2), (COUNT, 2)]
    rows = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    for subject in (b"s.x", b"here.x"):
        assert [int(data.split()[0]) for _, told, _, data in rows if told == subject] == list(
            range(1, COUNT + 1)
        )
    pair.require_nothing_left()


def test_into_an_archive_and_back(pair: Pair) -> None:
    """Pieces that were finished when the window closed are taken over; the archive is whole in the end, and so is what comes out of it."""
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
        patch.setattr(
            "jsplan.backfill.parquet.writer.time.sleep", lambda _: None
        )  # the rate makes pieces small; nobody waits for it
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


def test_portions() -> None:
    """Together they are everything, in order, and none has more than was asked for."""
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
