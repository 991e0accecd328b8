"""Copies that `--until` stops: what was staged is promoted, and the next run continues."""

from __future__ import annotations

import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jsplan.backfill.pending_ranges import PendingRanges, split_by_budget
from jsplan.backfill.tasks.origin_task import ExistingMessages
from jsplan.cli.main import main
from jsplan.planning.backfill.model import Deadline, SeqRange
from jsplan.workflows import backfill
from jsplan.workflows.backfill import BackfillOptions
from tests.backfill.backfill_pair import Pair, create_bulk_stream, read_all
from tests.support.simulated_kill import SimulatedKill, kill_after
from tests.support.workspaces import RecordingObserver

if TYPE_CHECKING:
    from pathlib import Path

    from jsplan.sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)
COUNT = 4_000


class Checks(Deadline, frozen=True):
    """A deadline that comes at the `left`th check of this process, whatever the clock says."""

    left: list[int]

    @property
    def has_passed(self) -> bool:
        """Count down."""
        self.left[0] -= 1
        return self.left[0] < 0


@pytest.fixture
def pair(tmp_path: Path, clean_hub_leaf: Sandbox) -> Pair:
    """Hub and leaf with 4 MB in `S` of the leaf, and an empty target."""
    found = Pair.create(tmp_path, clean_hub_leaf)
    create_bulk_stream(found.sandbox["leaf"], "S", COUNT, size=1000)
    found.stream("hub", "T")
    return found


def target_numbers(pair: Pair) -> list[int]:
    """Return the numbers in the target, in order."""
    return [int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")]


def stop_and_resume(pair: Pair, checks: int = 6) -> tuple[int, int]:
    """Stop a run and let another one finish it; return what each copied."""
    stopped = pair.result(until=Checks(0.0, [checks]))
    assert (stopped.stopped, stopped.exit_code) == (True, 6)
    pair.require_nothing_left()
    rest = pair.result(until=Deadline(time.time() + 1000))
    assert (rest.stopped, rest.exit_code) == (False, 0)
    assert stopped.copied + rest.copied == COUNT
    return stopped.copied, rest.copied


@pytest.mark.parametrize("entry", [{}, {"order": "none"}, {"order": "subject", "rate": "15KB/s"}])
def test_a_stopped_copy_is_resumed(
    pair: Pair, entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged messages are kept, and each message is copied once, in every order."""
    # The rate makes portions small; the test does not wait for it.
    monkeypatch.setattr("jsplan.backfill.tasks.origin_task.RateLimiter.throttle", lambda *_: None)
    pair.write_entry(**entry)
    first, _ = stop_and_resume(pair)
    assert first
    numbers = target_numbers(pair)
    assert (sorted(numbers) if entry.get("order") == "none" else numbers) == [*range(1, COUNT + 1)]


def test_a_time_that_is_over(pair: Pair) -> None:
    """A run whose time is over copies nothing, says so, and leaves the copy to the next one."""
    found = pair.result(until=Deadline(time.time() - 1))
    assert (found.copied, found.stopped, found.exit_code) == (0, True, 6)
    assert pair.run().copied == COUNT
    assert target_numbers(pair) == [*range(1, COUNT + 1)]


def test_dying_before_any_write_of_a_stopped_run(pair: Pair) -> None:
    """A run that dies while it stops is completed by the next, once and in order."""
    for after in (0, 2, 4, 6):
        with kill_after(after), pytest.raises(SimulatedKill):
            pair.result(until=Checks(0.0, [6]))
        pair.run()
        assert target_numbers(pair) == [*range(1, COUNT + 1)]
        pair.ask("hub", "STREAM.DELETE.T")
        (pair.space.folder / "state" / "test.json").unlink()
        pair.stream("hub", "T")


def test_an_archive_that_is_stopped(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished chunks of an archive are kept, and the archive comes back whole."""
    out = {"name": "x", "from": {"domain": "leaf", "stream": "S"}, "to": {"parquet": "archive"}}
    pair.space.write(backfills=[out | {"rate": "15KB/s"}])
    monkeypatch.setattr("jsplan.backfill.tasks.origin_task.time.sleep", lambda _: None)
    stop_and_resume(pair, 2)
    assert pq.read_table(pair.space.folder / "archive", columns=["seq"]).num_rows == COUNT
    back = {"name": "x", "from": {"parquet": "archive"}, "to": {"domain": "hub", "stream": "T"}}
    pair.space.write(backfills=[back])
    stop_and_resume(pair, 3)
    assert target_numbers(pair) == [*range(1, COUNT + 1)]


@pytest.mark.usefixtures("spark")
def test_workers_of_spark_stop(pair: Pair) -> None:
    """Workers of Spark stop at the time, and another run copies what is left."""
    deadline = Deadline(time.time() - 1)
    found = backfill.run(pair.space.load, BackfillOptions("x", until=deadline), RecordingObserver())
    assert (found.copied, found.stopped) == (0, True)
    found = backfill.run(pair.space.load, BackfillOptions("x"), RecordingObserver())
    assert (found.copied, target_numbers(pair)) == (COUNT, [*range(1, COUNT + 1)])


def test_times() -> None:
    """A time of day is the next one by the local clock; an RFC 3339 time is that time."""
    now = datetime.fromisoformat("2026-01-15T21:30").timestamp()
    for text, expected in {
        "22:00": "2026-01-15T22:00",
        "21:30": "2026-01-16T21:30",
        "05:00": "2026-01-16T05:00",
        "2026-01-31T05:00:00+00:00": "2026-01-31T05:00:00+00:00",
    }.items():
        assert Deadline.parse(text, now).at == datetime.fromisoformat(expected).timestamp()
    for text in ("5:00", "25:00", "05:0x", "tomorrow", ""):
        with pytest.raises(ValueError, match=r"\w"):
            Deadline.parse(text, now)


def test_a_time_on_the_command_line(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    """The command says that its time is over, and how to continue; a wrong time is refused."""
    args = ["-C", str(pair.space.folder), "backfill", "run", "x", "--until"]
    assert main([*args, "soon"]) == 64
    assert "write 05:00 or 2026-01-31T05:00:00Z" in capsys.readouterr().err


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
