"""The lock of a state: its holder, and for how long it holds."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from typing import Annotated

from msgspec import Meta, Struct

from jsplan.documents.types import Count
from jsplan.units import format_timestamp


class LockInfo(Struct, frozen=True):
    """Holder of a lock: user, host, process, operation; `since` is RFC 3339."""

    id: str
    who: str
    host: str
    pid: Count
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

    def describe(self) -> str:
        """Return one phrase.

        Example: `ann@ci-7 (process 812) for apply since 2026-01-31T12:00:00Z, lock 6b1…`.
        """
        return (
            f"{self.who}@{self.host} (process {self.pid}) for {self.operation} "
            f"since {self.since}, lock {self.id}"
        )


class Lock(Struct, frozen=True):
    """The value of a lock in a bucket. `lease` is seconds; its bounds are those of `lock_ttl`."""

    lock: LockInfo
    lease: Annotated[float, Meta(ge=0.001, le=1e10)]
