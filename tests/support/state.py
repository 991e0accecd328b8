"""The state as tests read and lock it, without async."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsplan.context import open_context
from jsplan.state import Entry, LocalBackend, LockInfo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from jsplan.config.model import LoadOptions
    from jsplan.context import Context
    from jsplan.state import Backend, State


def entry(**fields: Any) -> Entry:
    """An entry as an apply writes it."""
    rest: dict[str, Any] = {"prevent_destroy": False, "depends_on": [], "applied_at": ""} | fields
    created = "2026-01-01T00:00:00Z"
    return Entry({"name": "A", "max_age": 5}, {"name": "A"}, created, "created", **rest)


def local_state(folder: Path, workspace: str = "test") -> LocalBackend:
    """The default backend of a workspace without environments."""
    return LocalBackend(folder / "state" / f"{workspace}.json", workspace, None)


def read_state(folder: Path, workspace: str = "test") -> State:
    """Return the state of the default backend of a workspace."""
    return asyncio.run(local_state(folder, workspace).read())


def load_context(options: LoadOptions) -> Context:
    """Return files and state of a workspace, before any server is asked."""

    async def load() -> Context:
        async with open_context(options) as context:
            return context

    return asyncio.run(load())


@contextmanager
def hold_lock(backend: Backend, operation: str = "apply") -> Iterator[None]:
    """Hold the lock of a backend, taken without waiting, during the block."""
    with asyncio.Runner() as runner:
        lock = backend.lock(LockInfo.for_this_process(operation), 0)
        runner.run(_await_step(lock.__aenter__()))
        try:
            yield
        finally:
            runner.run(_await_step(lock.__aexit__(None, None, None)))
            runner.run(backend.close())


async def _await_step(step: object) -> None:
    await step  # type: ignore[misc]  # __aenter__ and __aexit__ give awaitables, the runner takes coroutines only
