"""Interface of the backends that keep state. Workflows and the executor use only this.

Everything that may wait for a disk or a network is async, so a slow backend blocks nothing else. A
lock names its holder to other processes that wait.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from jsplan.documents.lock import LockInfo
from jsplan.state.document import State

#: Seconds after which a waiting process reports the holder.
REPORT_AFTER = 0.5


class Journal(Protocol):
    """Part of a writing session that the executor uses: append, flush, sync, check the lock."""

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Apply changes to the document in memory and append them to the journal.

        Raises StateError.
        """

    async def flush(self) -> None:
        """Wait until everything appended so far survives the end of this process.

        Raises StateError.
        """

    async def sync(self) -> None:
        """Wait until everything appended so far is durable. Concurrent calls share one wait."""

    def may_write(self, seconds: float) -> float:
        """Check the lock before a request that changes a server and may take `seconds`.

        Returns the seconds that the request may take: fewer where the lease is short. Raises
        StateError where too little of the lease is left.
        """


class Backend(Journal, Protocol):
    """The state of one workspace and environment, its lock and its journal.

    A writing session is: `lock`, `read`, `start`, any number of `append` with `flush` and `sync`,
    `finish`. If the process dies in between, `read` combines document and journal.
    """

    @property
    def location(self) -> str:
        """Location of the state for messages, without secrets."""

    async def read(self, without: Collection[str] = ()) -> State:
        """Read the state and apply its journal. An empty state if there is none yet.

        What it has under the addresses `without` is left out, and may be damaged.

        Takes no lock and writes nothing. Raises StateError for a damaged or foreign document, which
        is never taken for an empty one.
        """

    def lock(
        self, info: LockInfo, timeout: int, tell: Callable[[LockInfo], None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Lock the state against other writers, waiting at most `timeout` ns for the holder.

        `tell` is called with the holder while the lock is waited for. Raises StateLockedError that
        names the holder, StateError where it cannot be determined.
        """

    async def start(self, state: State) -> None:
        """Begin a session under the lock: fold an unfinished journal, take a new serial."""

    async def finish(self, state: State) -> None:
        """End the session: fold the journal into the document.

        Raises StateError; the journal then still has the steps that are done.
        """

    async def replace(self, state: State) -> None:
        """Write a whole document under the lock, outside of a session. Keep the previous one."""

    async def read_previous(self, serial: int) -> State:
        """Read the document of a kept serial. Takes no lock and writes nothing.

        Raises StateError that names the serials that are kept.
        """

    async def read_holder(self) -> LockInfo | None:
        """Read the current holder of the lock without taking the lock. Raises StateError."""

    async def unlock(self, lock_id: str) -> LockInfo | None:
        """Remove a lock that a dead process left, if it has this id. Returns its holder.

        Returns None where no lock is held. Raises StateError where it has another id.
        """

    async def close(self) -> None:
        """Release all resources. The next reader finds the journal of an open session."""


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
