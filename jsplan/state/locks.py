"""Who holds a lock. Taking and releasing it is left to each backend."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from typing import Any

from jsplan.units import stamp


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
    def here(cls, operation: str) -> LockInfo:
        """This process, now."""
        try:
            who = getpass.getuser()
        except (KeyError, OSError):
            who = str(os.getuid())
        since = stamp()
        return cls(str(uuid.uuid4()), who, socket.gethostname(), os.getpid(), operation, since)

    def to_json(self) -> dict[str, Any]:
        """As kept beside the lock."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> LockInfo:
        """The reverse of `to_json`."""
        return cls(**raw)

    def describe(self) -> str:
        """One phrase: `ann@ci-7 (process 812) for apply since 2026-01-31T12:00:00Z, lock 6b1…`."""
        return f"{self.who}@{self.host} (process {self.pid}) for {self.operation} since {self.since}, lock {self.id}"
