"""The holder of a lock, and reports about it while another process waits."""

from __future__ import annotations

import getpass
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from jsplan.documents.base import known_fields
from jsplan.units import format_timestamp

#: Seconds after which a waiting process reports the holder.
REPORT_AFTER = 0.5


class LockInfo(Struct, frozen=True):
    """Holder of a lock: user, host, process, operation; `since` is RFC 3339."""

    id: str
    who: str
    host: str
    pid: int
    operation: str
    since: str

    @classmethod
    def for_this_process(cls, operation: str) -> LockInfo:
        """Describe this process, now."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            who = str(os.getuid())
        since = format_timestamp()
        return cls(str(uuid.uuid4()), who, socket.gethostname(), os.getpid(), operation, since)

    def to_json(self) -> dict[str, Any]:
        """Return the document that is stored with the lock."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LockInfo:
        """Parse the output of `to_json`."""
        return cls(**known_fields(cls, raw))

    def describe(self) -> str:
        """Return one phrase.

        Example: `ann@ci-7 (process 812) for apply since 2026-01-31T12:00:00Z, lock 6b1…`.
        """
        return (
            f"{self.who}@{self.host} (process {self.pid}) for {self.operation} "
            f"since {self.since}, lock {self.id}"
        )


class WaitReporter:
    """Reports the holder of a lock once after a moment, and again when the holder changes."""

    def __init__(self, tell: Callable[[LockInfo], None] | None) -> None:
        self._report = tell
        self._since = time.monotonic()
        self._reported = ""

    def report(self, info: LockInfo | None) -> None:
        """Report that `info` holds the lock; None: the holder is not known yet."""
        if (
            self._report is not None
            and info is not None
            and info.id != self._reported
            and time.monotonic() - self._since >= REPORT_AFTER
        ):
            self._reported = info.id
            self._report(info)


def is_holder_dead(info: LockInfo) -> bool:
    """Return True for a holder on this machine whose process no longer exists."""
    if info.host != socket.gethostname():
        return False
    try:
        os.kill(info.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False
