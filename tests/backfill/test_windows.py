"""Windows of an entry: opening, closing, midnight and changes of the clock."""

from __future__ import annotations

import pickle
import time
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from jsplan.config.model import Backfill, BackfillSide
from jsplan.planning.backfill.estimate import estimate_backfill
from jsplan.planning.backfill.windows import (
    Clock,
    Deadline,
    Window,
    WindowClosedError,
    count_windows,
    describe_opening,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

NIGHT, LATE = Window.parse("01:00-05:00"), Window.parse("22:00-04:00")


def local_timestamp(text: str) -> float:
    """Return the timestamp of a local time, on a winter day or on the given date."""
    return datetime.fromisoformat(text if "T" in text else f"2026-01-15T{text}").timestamp()


@pytest.mark.parametrize(
    ("window", "now", "closes", "opens"),
    [
        (NIGHT, "00:59:59", None, "01:00"), (NIGHT, "01:00", "05:00", "01:00"), (NIGHT, "04:59:59", "05:00", "04:59:59"),
        (NIGHT, "05:00", None, "2026-01-16T01:00"), (LATE, "21:00", None, "22:00"), (LATE, "23:00", "2026-01-16T04:00", "23:00"),
        (LATE, "03:59", "04:00", "03:59"), (LATE, "04:00", None, "22:00"),
        (Window.parse("22:00-00:00"), "23:59", "2026-01-16T00:00", "23:59"),
        (Window.parse("00:00-06:00"), "00:00", "06:00", "00:00"),
    ],
)  # fmt: skip
def test_opening_and_closing_of_a_window(
    window: Window, now: str, closes: str | None, opens: str
) -> None:
    """A window includes its opening and excludes its closing, also over midnight."""
    assert window.closes_at(local_timestamp(now)) == (
        local_timestamp(closes) if closes is not None else None
    )
    assert window.opens_at(local_timestamp(now)) == local_timestamp(opens)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The clocks of Berlin: 29 March 2026 has no 02:30, and 25 October has two."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_windows_over_a_change_of_the_clock() -> None:
    """A window in local time is an hour shorter or longer when the clock changes."""
    spring, autumn = local_timestamp("2026-03-29T01:00"), local_timestamp("2026-10-25T01:00")

    assert NIGHT.closes_at(spring) == spring + 3 * 3600
    assert NIGHT.closes_at(autumn) == autumn + 5 * 3600
    missing = Window.parse("02:30-02:45")
    assert missing.opens_at(local_timestamp("2026-03-29T00:00")) <= local_timestamp(
        "2026-03-29T03:45"
    )
    opens = missing.opens_at(local_timestamp("2026-03-29T12:00"))
    local = datetime.fromtimestamp(opens)  # noqa: DTZ006 - the wall clock of the machine is meant
    assert local.isoformat() == "2026-03-30T02:30:00"


def test_count_windows() -> None:
    """The rest of an open window counts first, then whole windows."""
    hour = 3600

    assert count_windows(NIGHT, 4 * hour, local_timestamp("12:00")) == 1
    assert count_windows(NIGHT, 4 * hour + 1, local_timestamp("12:00")) == 2
    assert count_windows(NIGHT, 2 * hour, local_timestamp("04:00")) == 2
    assert count_windows(NIGHT, 9 * hour, local_timestamp("04:00")) == 3
    assert count_windows(LATE, 6 * hour, local_timestamp("22:00")) == 1


def test_describe_opening() -> None:
    """The opening is described by the local clock, with a date if it is not within a day."""
    assert describe_opening(NIGHT, local_timestamp("12:00")) == "opens 01:00"
    assert describe_opening(LATE, local_timestamp("12:00")) == "opens 22:00"


class FixedClock(Clock):
    """A clock that does not advance."""

    def now(self) -> float:
        """Return half past three."""
        return local_timestamp("03:30")


def test_a_deadline_travels_with_its_clock() -> None:
    """A pickled deadline keeps its clock, and raises when the window has closed."""
    texts = [
        pickle.dumps(Deadline(local_timestamp(text), FixedClock())) for text in ("03:31", "03:30")
    ]
    later, over = (pickle.loads(text) for text in texts)  # noqa: S301 - what was dumped a moment ago

    later.require_open()
    with pytest.raises(WindowClosedError, match="the window closed"):
        over.require_open()


def test_the_estimate_has_the_number_of_windows() -> None:
    """An estimate has the window, and the number of windows if it takes more than one."""
    entry = Backfill(
        "x",
        (BackfillSide("leaf", "S"),),
        BackfillSide("hub", "T"),
        rate=1 << 20,
        window="01:00-05:00",
    )

    one = estimate_backfill(entry, "spark", 1000, 1 << 30, [], local_timestamp("12:00"))
    many = estimate_backfill(entry, "spark", 1000, 40 << 30, [], local_timestamp("12:00"))

    assert one.basis == "at `rate: 1.0 MiB/s`, and 10s for Spark to start; inside of 01:00-05:00"
    assert (
        many.basis
        == "at `rate: 1.0 MiB/s`, and 10s for Spark to start; inside of 01:00-05:00, which takes 3 windows"
    )
    assert many.seconds == 40 * 1024 + 10
