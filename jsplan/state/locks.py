"""The holder of a lock, and reports about it while another process waits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from jsplan.documents.lock import LockInfo

#: Seconds after which a waiting process reports the holder.
REPORT_AFTER = 0.5


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
