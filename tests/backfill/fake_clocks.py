"""Clocks for tests of windows. They wait for nothing and advance when a test lets them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from datetime import datetime

from jsplan.planning.backfill.windows import Clock


def local_time(text: str) -> float:
    """Return a local time of a winter day."""
    return datetime.fromisoformat(f"2026-01-15T{text}").timestamp()


@dataclass
class SteppingClock(Clock):
    """A clock that begins at `time` and passes each wait at once.

    Each reading of a task, which runs in a thread of its own, takes `step` seconds. Only
    the first `max_steps` readings do, since the number of readings depends on the speed
    of the machine. `readings` are the times that tasks read.
    """

    time: float
    step: float = 0.0
    max_steps: int = 6
    readings: list[float] = field(default_factory=list)

    def now(self) -> float:
        """Return the time, and advance it after a reading of a task."""
        shown = self.time
        if threading.current_thread() is not threading.main_thread():
            self.readings.append(shown)
            self.time += self.step if len(self.readings) <= self.max_steps else 0.0
        return shown

    def sleep_for(self, seconds: float) -> float:
        """Advance the time at once."""
        self.time += seconds
        return 0.0

    @property
    def display_time(self) -> str:
        """The time as HH:MM."""
        return f"{datetime.fromtimestamp(self.time):%H:%M}"  # noqa: DTZ006 - windows are local


class SkewedClock(Clock):
    """A clock that is `ahead` seconds in other processes from their second reading on.

    Their window closes in its middle, before the window of this process. After the first
    wait in this process all clocks agree.
    """

    def __init__(self, time: float, ahead: float) -> None:
        self._time = time
        self._ahead = ahead
        self._owner = os.getpid()
        self._readings = 0

    def now(self) -> float:
        """Return the time of this process."""
        if os.getpid() == self._owner:
            return self._time
        self._readings += 1
        return self._time + (self._ahead if self._readings > 1 else 0.0)

    def sleep_for(self, seconds: float) -> float:
        """Advance the time at once, and remove the skew."""
        self._time += seconds
        self._ahead = 0.0
        return 0.0
