"""When the next full check is due: every so long, or as a crontab says, with jitter. Pure; waiting is left to the workflow."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from cronsim import CronSim, CronSimError

from jsplan.units import SECOND


class Schedule(Protocol):
    """When to look."""

    def next_after(self, moment: datetime) -> datetime:
        """The next time after `moment`, jitter included."""

    @property
    def period(self) -> float:
        """The longest time between two checks that is to be expected, in seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Every so many ns, plus up to `jitter` ns."""

    interval: int
    jitter: int = 0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def next_after(self, moment: datetime) -> datetime:
        """The moment plus the interval."""
        return moment + timedelta(
            seconds=self.interval / SECOND + self.random.uniform(0, self.jitter / SECOND)
        )

    @property
    def period(self) -> float:
        """Interval and jitter."""
        return (self.interval + self.jitter) / SECOND


@dataclass(frozen=True, slots=True)
class Cron:
    """As the five fields of a crontab line say, in the moment's time zone, plus up to `jitter` ns. Raises ValueError for another text."""

    line: str
    jitter: int = 0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def __post_init__(self) -> None:
        try:
            next(CronSim(self.line, datetime(2026, 1, 1)))  # noqa: DTZ001 - only whether it can be read
        except CronSimError as error:
            raise ValueError(f'"{self.line}" is no crontab line of five fields: {error}') from None
        except StopIteration:
            raise ValueError(f'"{self.line}" never comes') from None

    def next_after(self, moment: datetime) -> datetime:
        """The first matching minute after the moment."""
        due: datetime = next(CronSim(self.line, moment))
        return due + timedelta(seconds=self.random.uniform(0, self.jitter / SECOND))

    @property
    def period(self) -> float:
        """The longest of the next fifty gaps."""
        times = CronSim(self.line, datetime(2026, 1, 1))  # noqa: DTZ001 - gaps, no moments
        last, longest = next(times), 0.0
        for _, moment in zip(range(50), times, strict=False):
            longest, last = max(longest, (moment - last).total_seconds()), moment
        return longest + self.jitter / SECOND
