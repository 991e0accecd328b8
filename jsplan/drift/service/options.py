"""Options of the drift job, and its schedule: an interval or a crontab line. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from cronsim import CronSim, CronSimError
from msgspec import Struct

from jsplan.units import SECOND


class WatchOptions(Struct, frozen=True):
    """Options of the drift job. `schedule` is that of full checks; `notify` are alert kinds.

    `grace` is ns that a domain, or the whole check, may fail before an alert. `metrics` is
    HOST:PORT.
    """

    schedule: Schedule
    notify: frozenset[str]
    grace: int = 30 * SECOND
    metrics: str | None = None


class Schedule(Protocol):
    """Times of full checks."""

    def next_after(self, moment: datetime) -> datetime:
        """Return the next time after `moment`, with jitter."""

    @property
    def period(self) -> float:
        """The longest expected time between two checks, in seconds."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A check every `interval` ns, plus up to `jitter` ns."""

    interval: int
    jitter: int = 0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def next_after(self, moment: datetime) -> datetime:
        """Return the moment plus the interval."""
        return moment + timedelta(
            seconds=self.interval / SECOND + self.random.uniform(0, self.jitter / SECOND)
        )

    @property
    def period(self) -> float:
        """Interval plus jitter."""
        return (self.interval + self.jitter) / SECOND


@dataclass(frozen=True, slots=True)
class Cron:
    """Checks by a crontab line of five fields in the moment's time zone. `jitter` is ns.

    Raises ValueError for a line that cannot be parsed or never matches.
    """

    line: str
    jitter: int = 0
    random: random.Random = field(default_factory=random.Random, compare=False)

    def __post_init__(self) -> None:
        try:
            next(CronSim(self.line, datetime(2026, 1, 1)))  # noqa: DTZ001 - only checks the syntax
        except CronSimError as error:
            raise ValueError(
                f'"{self.line}" is not a crontab line of five fields: {error}'
            ) from None
        except StopIteration:
            raise ValueError(f'"{self.line}" never comes') from None

    def next_after(self, moment: datetime) -> datetime:
        """Return the first matching minute after the moment."""
        due: datetime = next(CronSim(self.line, moment))
        return due + timedelta(seconds=self.random.uniform(0, self.jitter / SECOND))

    @property
    def period(self) -> float:
        """The longest of the next fifty gaps."""
        times = CronSim(self.line, datetime(2026, 1, 1))  # noqa: DTZ001 - only gaps matter
        last, longest = next(times), 0.0
        for _, moment in zip(range(50), times, strict=False):
            longest, last = max(longest, (moment - last).total_seconds()), moment
        return longest + self.jitter / SECOND
