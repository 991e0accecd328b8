"""`window:` of an entry: the hours of the day in which messages may be copied, by the local time of the machine that runs the command.

Pure but for `Clock`, which is an argument wherever the time of day matters. Who waits and who stops is left to the callers.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from jsplan.errors import ApiError

_DAY_MINUTES: Final = 24 * 60
#: A window is looked for among so many days; one is enough, but for a day on which the clocks jump over the opening.
_SEARCHED_DAYS: Final = 3


class Clock:
    """The machine's own clock. It travels to tasks, so it holds nothing."""

    def now(self) -> float:
        """Seconds since 1970, as `time.time` has them."""
        return time.time()

    def sleep_for(self, seconds: float) -> float:
        """How long to sleep so that so much time passes on this clock."""
        return seconds


SYSTEM_CLOCK: Final = Clock()


class WindowClosedError(ApiError):
    """The window closed while messages were copied: what was copied is kept, and the next window goes on from there."""


@dataclass(frozen=True, slots=True)
class Window:
    """From `opens` to `closes`, in minutes after midnight, the second one not included; one that closes first goes over midnight."""

    opens: int
    closes: int

    @classmethod
    def parse(cls, text: str) -> Window:
        """What `01:00-05:00` means; the text was checked when the files were read."""
        opens, closes = (int(part[:2]) * 60 + int(part[3:]) for part in text.split("-"))
        return cls(opens, closes)

    @property
    def seconds(self) -> int:
        """How long it is open, on a day of 24 hours."""
        return (self.closes - self.opens) % _DAY_MINUTES * 60

    def closes_at(self, now: float) -> float | None:
        """When it closes, if it is open at `now`; else None. Both are seconds since 1970."""
        found = (
            times
            for day in range(-1, _SEARCHED_DAYS)
            if (times := self._times_on(now, day))[0] <= now < times[1]
        )
        return next((closes for _, closes in found), None)

    def opens_at(self, now: float) -> float:
        """When it opens next; `now` where it is open."""
        if self.closes_at(now) is not None:
            return now
        return next(
            opens for day in range(_SEARCHED_DAYS) if (opens := self._times_on(now, day)[0]) > now
        )

    def _times_on(self, now: float, day: int) -> tuple[float, float]:
        """When it opens and closes, if it opens so many days after the one of `now`. A time that the clocks jump over is the one after."""
        midnight = datetime.fromtimestamp(now).replace(
            hour=0, minute=0, second=0, microsecond=0
        ) + timedelta(days=day)
        opens, closes = (
            midnight + timedelta(minutes=minutes) for minutes in (self.opens, self.closes)
        )
        return opens.timestamp(), (closes + timedelta(days=self.closes <= self.opens)).timestamp()


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a task stops to copy: seconds since 1970, by a clock."""

    at: float
    clock: Clock = SYSTEM_CLOCK

    @property
    def has_passed(self) -> bool:
        """Whether nothing more may be copied."""
        return self.clock.now() >= self.at

    def require_open(self) -> None:
        """Raise WindowClosedError where nothing more may be copied."""
        if self.has_passed:
            raise WindowClosedError("the window closed", hint="The next one goes on from there.")


def count_windows(window: Window, seconds: float, now: float) -> int:
    """In how many windows so many seconds of copying are done: in what is left of the one that is open, then in whole ones."""
    closes = window.closes_at(now)
    first = closes - now if closes is not None else float(window.seconds)
    return 1 if seconds <= first else 1 + -int(-(seconds - first) // window.seconds)


def describe_opening(window: Window, now: float) -> str:
    """`opens 01:00`: when a window that is closed opens next, as the local clock has it, with the date if that is not within a day."""
    at = datetime.fromtimestamp(window.opens_at(now))  # noqa: DTZ006 - the local clock is what a window is about
    day = "" if at.timestamp() - now < _DAY_MINUTES * 60 else f" on {at:%Y-%m-%d}"
    return f"opens {at:%H:%M}{day}"
