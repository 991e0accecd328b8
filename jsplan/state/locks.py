"""Who holds a lock. Taking and releasing it is left to each backend."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from jsplan.documents.base import known_fields
from jsplan.units import format_timestamp

#: Seconds after which whoever waits is told for whom.
REPORT_AFTER = 0.5


@dataclass(frozen=True, slots=True)
class LockInfo:
    """Who, where, what and since when; `since` is RFC 3339."""

    id: str
    who: str
    host: str
    pid: int
    operation: str
    since: str

    @classmethod
    def for_this_process(cls, operation: str) -> LockInfo:
        """This process, now."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            who = str(os.getuid())
        since = format_timestamp()
        return cls(str(uuid.uuid4()), who, socket.gethostname(), os.getpid(), operation, since)

    def to_json(self) -> dict[str, Any]:
        """As kept beside the lock."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LockInfo:
        """The reverse of `to_json`."""
        return cls(**known_fields(cls, raw))

    def describe(self) -> str:
        """One phrase: `ann@ci-7 (process 812) for apply since 2026-01-31T12:00:00Z, lock 6b1…`."""
        return f"{self.who}@{self.host} (process {self.pid}) for {self.operation} since {self.since}, lock {self.id}"


class WaitReporter:
    """Tells once, after a moment, whose lock is waited for; and again when somebody else has taken it meanwhile."""

    def __init__(self, tell: Callable[[LockInfo], None] | None) -> None:
        self._report = tell
        self._since = time.monotonic()
        self._reported = ""

    def report(self, info: LockInfo | None) -> None:
        """The lock is not to be had, since this one has it; None: it has not said yet who it is."""
        if (
            self._report is not None
            and info is not None
            and info.id != self._reported
            and time.monotonic() - self._since >= REPORT_AFTER
        ):
            self._reported = info.id
            self._report(info)


def is_holder_dead(info: LockInfo) -> bool:
    """Whether a holder on this machine surely is no more."""
    if info.host != socket.gethostname():
        return False
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
