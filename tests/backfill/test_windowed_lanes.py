"""The other ways of Spark inside of a window: lanes, fleets, archives in both directions. What closes in the middle goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from jsplan.backfill.job.copying import Known
from jsplan.backfill.ranges import Span
from jsplan.workflows.backfill.hours import portions
from jsplan.workflows.backfill.missing import Todo
from tests.backfill.clocks import Stepping, local
from tests.backfill.copies import Pair, bulk, read_all
from tests.support.workspaces import Quiet

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
    found = Pair.of(tmp_path, clean_hub_leaf, **WINDOW)
    bulk(found.sandbox["leaf"], "S", COUNT, size=1000)
    return found


def closing() -> Stepping:
    """A clock with which the first window closes after a few looks of whoever copies, and no other."""
    return Stepping(local("01:00"), step=HOUR, most=5)


def numbers(pair: Pair) -> list[int]:
    """What the target has, in its order."""
    return [int(data.split()[0]) for *_, data in read_all(pair.sandbox["hub"], "$JS.hub.API", "T")]


def test_lanes_that_go_through_the_shuffle(pair: Pair) -> None:
    """They are copied in portions, so that a window that closes costs no more than one; each subject stays in its order."""
    pair.stream("hub", "T")
    pair.says(order="subject", rate="5KB/s", **WINDOW)  # an eighth of what passes at that rate is 9 MB: three portions
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.backfill.job.copying.Pace.passed", lambda *_: None)  # the rate is not what is tried here
        observer = Quiet()
        found = pair.run(observer=observer, clock=closing())

    assert (found.copied, found.verified, found.gaps) == (COUNT, True, [])
    assert found.windows == 2
    assert numbers(pair) == list(range(1, COUNT + 1))  # there is one subject
    assert sum(text.startswith("Copying") for text in observer.said) >= 4
    pair.require_nothing_left()


def test_lanes_that_read_for_themselves(pair: Pair) -> None:
    """What they had staged when the window closed is brought in, and not read again."""
    pair.stream("hub", "T")
    pair.says(order="none", **WINDOW)

    found = pair.run(clock=closing())

    assert (found.copied, found.windows) == (COUNT, 2)
    assert sorted(numbers(pair)) == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_a_fleet(pair: Pair) -> None:
    """Each origin in its order, everything once."""
    bulk(pair.sandbox["hub"], "HERE", COUNT, size=1000)
    pair.stream("hub", "T")
    pair.entry = pair.entry | {"from": [{"domain": "hub", "stream": "HERE"}, {"domain": "leaf", "stream": "S"}]}
    pair.space.write(backfills=[pair.entry])

    found = pair.result(clock=closing())

    assert [(leg.copied, leg.windows) for leg in found.origins] == [(COUNT, 2), (COUNT, 2)]
    rows = read_all(pair.sandbox["hub"], "$JS.hub.API", "T")
    for subject in (b"s.x", b"here.x"):
        assert [int(data.split()[0]) for _, told, _, data in rows if told == subject] == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_into_an_archive_and_back(pair: Pair) -> None:
    """Pieces that were finished when the window closed are taken over; the archive is whole in the end, and so is what comes out of it."""
    pair.stream("hub", "T")
    pair.says(rate="2KB/s", **WINDOW)
    out: dict[str, Any] = {"name": "x", "from": {"domain": "leaf", "stream": "S"}, "to": {"parquet": "archive"}, "rate": "2KB/s"} | WINDOW
    pair.space.write(backfills=[out])
    observer = Quiet()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jsplan.backfill.job.archiving.time.sleep", lambda _: None)  # the rate makes pieces small; nobody waits for it
        found = pair.run(observer=observer, clock=closing())

    assert (found.copied, found.windows, found.verified) == (COUNT, 2, True)
    assert pq.read_table(pair.space.folder / "archive", columns=["seq"]).num_rows == COUNT
    assert any(text.startswith("Resuming with") for text in observer.said)
    pair.space.write(backfills=[{"name": "x", "from": {"parquet": "archive"}, "to": {"domain": "hub", "stream": "T"}} | WINDOW])

    back = pair.run(clock=Stepping(local("01:00"), step=4 * HOUR, most=1))

    assert (back.copied, back.windows) == (COUNT, 2)
    assert numbers(pair) == list(range(1, COUNT + 1))
    pair.require_nothing_left()


def test_portions() -> None:
    """Together they are everything, in order, and none has more than was asked for."""
    todos = [Todo((Span(1, 10), Span(21, 30)), Known(), ()), Todo((Span(5, 9),), Known(), ())]

    found = list(portions(todos, 8))

    assert [[todo.spans for todo in part] for part in found] == [
        [(Span(1, 8),), ()], [(Span(9, 10), Span(21, 26)), ()], [(Span(27, 30),), (Span(5, 8),)], [(), (Span(9, 9),)],
    ]  # fmt: skip
    assert list(portions(todos, None)) == [todos]
