"""The `window:` of an entry: the hours of the day in which messages may be copied.

Hours are local time of the machine that runs the command.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from jsplan.errors import ApiError

_DAY_MINUTES: Final = 24 * 60
#: Days that are searched for a window: on one day the clocks may jump over the opening.
_SEARCHED_DAYS: Final = 3


class Clock:
    """The clock of the machine. It is sent to tasks, so it has no fields."""

    def now(self) -> float:
        """Return seconds since 1970, as `time.time`."""
        return time.time()

    def sleep_for(self, seconds: float) -> float:
        """Return the real time to sleep for this time on the clock."""
        return seconds


SYSTEM_CLOCK: Final = Clock()


class WindowClosedError(ApiError):
    """The window closed during a copy. Copied messages stay, and the next window resumes it."""


class Window(Struct, frozen=True):
    """A daily window from `opens` to before `closes`, in minutes after midnight.

    A window that closes before it opens spans midnight.
    """

    opens: int
    closes: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """Parse `01:00-05:00`, which was validated with the files."""
        opens, closes = (int(part[:2]) * 60 + int(part[3:]) for part in text.split("-"))
        return cls(opens, closes)

    @property
    def seconds(self) -> int:
        """The length of the window, on a day of 24 hours."""
        return (self.closes - self.opens) % _DAY_MINUTES * 60

    def closes_at(self, now: float) -> float | None:
        """Return the closing time if it is open at `now`, else None, in seconds since 1970."""
        found = (
            times
            for day in range(-1, _SEARCHED_DAYS)
            if (times := self._times_on(now, day))[0] <= now < times[1]
        )
        return next((closes for _, closes in found), None)

    def opens_at(self, now: float) -> float:
        """Return the next opening time; `now` if it is open."""
        if self.closes_at(now) is not None:
            return now
        return next(
            opens for day in range(_SEARCHED_DAYS) if (opens := self._times_on(now, day)[0]) > now
        )

    def _times_on(self, now: float, day: int) -> tuple[float, float]:
        """Return the times of the window that opens `day` days after `now`.

        A time that the clocks skip becomes the time after the jump.
        """
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - windows are local
        midnight = today.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=day)
        opens, closes = (
            midnight + timedelta(minutes=minutes) for minutes in (self.opens, self.closes)
        )
        return opens.timestamp(), (closes + timedelta(days=self.closes <= self.opens)).timestamp()


class Deadline(Struct, frozen=True):
    """The time at which tasks stop copying: seconds since 1970, by a clock."""

    at: float
    clock: Clock = SYSTEM_CLOCK

    @property
    def has_passed(self) -> bool:
        """True if nothing more may be copied."""
        return self.clock.now() >= self.at

    def require_open(self) -> None:
        """Raise WindowClosedError if nothing more may be copied."""
        if self.has_passed:
            raise WindowClosedError("the window closed", hint="The next window resumes the copy.")


def count_windows(window: Window, seconds: float, now: float) -> int:
    """Count the windows for this time of copying, from the rest of an open window on."""
    closes = window.closes_at(now)
    first = closes - now if closes is not None else float(window.seconds)
    return 1 if seconds <= first else 1 + -int(-(seconds - first) // window.seconds)


def describe_opening(window: Window, now: float) -> str:
    """Describe the next opening as `opens 01:00`, with the date if it is not within a day."""
    at = datetime.fromtimestamp(window.opens_at(now))  # noqa: DTZ006 - windows are local
    day = "" if at.timestamp() - now < _DAY_MINUTES * 60 else f" on {at:%Y-%m-%d}"
    return f"opens {at:%H:%M}{day}"
