"""The time at which a backfill stops copying: `backfill run --until`."""

from __future__ import annotations

import time
from datetime import datetime, timedelta

from msgspec import Struct

from jsplan.errors import ApiError
from jsplan.units import SECOND, parse_instant


class DeadlinePassedError(ApiError):
    """The time came during a copy. Copied messages stay, and the next run resumes it."""


class Deadline(Struct, frozen=True):
    """The time at which tasks stop copying: seconds since 1970, by the clock of their machine."""

    at: float

    @classmethod
    def parse(cls, text: str, now: float) -> Deadline:
        """Parse `05:00`, the next such local time after `now`, or an RFC 3339 time.

        `now` is in seconds since 1970. Raises ValueError.
        """
        if len(text) != 5 or text[2] != ":":
            return cls(parse_instant(text) / SECOND)
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - a time without a zone is local
        hour, minute = (int(part) for part in text.split(":"))
        at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        return cls((at + timedelta(days=at <= today)).timestamp())

    @property
    def has_passed(self) -> bool:
        """True if nothing more may be copied."""
        return time.time() >= self.at

    def require_open(self) -> None:
        """Raise DeadlinePassedError if nothing more may be copied."""
        if self.has_passed:
            raise DeadlinePassedError("its time is over", hint="The next run resumes the copy.")
