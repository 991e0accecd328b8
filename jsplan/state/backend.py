"""What a place that keeps state can do. Workflows and the executor know only this; how it is done is left to each backend.

Everything that may wait for a disk or a network is async, so that a backend behind a slow link holds up nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from jsplan.state.document import State
from jsplan.state.locks import LockInfo


class Journal(Protocol):
    """What whoever changes servers needs of a session that others begin and end."""

    def append(self, state: State, *changes: dict[str, Any]) -> None:
        """Carry out journal lines on the document in memory and hand them to the journal. Raises StateError."""

    async def flush(self) -> None:
        """Wait until what was appended so far survives the death of this process. Raises StateError."""

    async def sync(self) -> None:
        """Wait until what was appended so far is kept as well as it ever will be. Steps that end together share one wait."""

    def may_write(self, seconds: float) -> float:
        """Ask right before each request that changes a server, and may take so long: is the lock ours until then?

        Returns the seconds that it may take: fewer where the lease is short. Raises StateError where too little is left.
        """


class Backend(Journal, Protocol):
    """The state of one workspace and environment, its lock and its journal.

    A writing session is: `lock`, `read`, `start`, any number of `append` with `flush` and `sync`, `finish`. Whatever dies in
    between leaves what `read` makes one document of.
    """

    @property
    def location(self) -> str:
        """Where the state is, in words for messages; without secrets."""

    async def read(self) -> State:
        """The state with its journal carried out; an empty one if there is none yet. Takes no lock, writes nothing.

        Raises StateError for a damaged or foreign document, which is never taken for an empty one.
        """

    def lock(
        self, info: LockInfo, timeout: int, tell: Callable[[LockInfo], None] | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Keep everybody else from writing; `timeout` is ns to wait for somebody who does, and `tell` is told who that is.

        Raises StateLockedError that says who holds it, StateError where it cannot be known.
        """

    async def start(self, state: State) -> None:
        """Begin a writing session under the lock: fold what a dead process left, then take a new serial."""

    async def finish(self, state: State) -> None:
        """End the session: the document takes in its journal. Raises StateError; then the journal still has what is done."""

    async def replace(self, state: State) -> None:
        """Put a whole document in place, under the lock and outside of a session; what was there before stays among the previous."""

    async def read_previous(self, serial: int) -> State:
        """The document of a serial that is kept. Raises StateError that names those that are. Takes no lock, writes nothing."""

    async def read_holder(self) -> LockInfo | None:
        """Who works on the state now, as far as can be seen without touching the lock. Raises StateError."""

    async def unlock(self, lock_id: str) -> LockInfo:
        """Take away a lock that was left behind, if it has this id; who held it. Raises StateError where it has not."""

    async def close(self) -> None:
        """Let go of everything, of an open session as it is; the next reader finds its journal."""
