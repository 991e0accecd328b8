"""A clock for tests of windows: nobody waits for it, and it moves on only where a test lets it."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from datetime import datetime

from jsplan.backfill.windows import Clock


def local_time(text: str) -> float:
    """A local time of a winter's day."""
    return datetime.fromisoformat(f"2026-01-15T{text}").timestamp()


@dataclass
class SteppingClock(Clock):
    """Begins at `time`. Whoever waits comes at once to when that is over; each look of a task, which is in a thread of its own, takes
    `step` seconds, but only the first `max_steps` of them: how often tasks look depends on how fast they are. `readings` are what they saw.
    """

    time: float
    step: float = 0.0
    max_steps: int = 6
    readings: list[float] = field(default_factory=list)

    def now(self) -> float:
        """What it shows; it goes on behind whoever copies."""
        shown = self.time
        if threading.current_thread() is not threading.main_thread():
            self.readings.append(shown)
            self.time += self.step if len(self.readings) <= self.max_steps else 0.0
        return shown

    def sleep_for(self, seconds: float) -> float:
        """It is later at once."""
        self.time += seconds
        return 0.0

    @property
    def display_time(self) -> str:
        """As HH:MM."""
        return f"{datetime.fromtimestamp(self.time):%H:%M}"  # noqa: DTZ006 - windows are local


class SkewedClock(Clock):
    """A clock that in other processes is `ahead` seconds from their second look on, until somebody has waited here: their window closes
    in its middle, and before ours.
    """

    def __init__(self, time: float, ahead: float) -> None:
        self._time = time
        self._ahead = ahead
        self._owner = os.getpid()
        self._looks = 0

    def now(self) -> float:
        """What it shows in this process."""
        if os.getpid() == self._owner:
            return self._time
        self._looks += 1
        return self._time + (self._ahead if self._looks > 1 else 0.0)

    def sleep_for(self, seconds: float) -> float:
        """It is later at once, and right everywhere."""
        self._time += seconds
        self._ahead = 0.0
        return 0.0
