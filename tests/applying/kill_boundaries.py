"""A process that dies in an apply: before a line of the journal, before a request that writes, or after one."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from jsplan.state import LocalBackend, State


class SimulatedKill(Exception):
    """What a process does at kill -9: nothing more, not even its clean-up."""


class BoundaryKiller:
    """Dies at its n-th boundary: before a line of the journal, before a request that writes, or after it."""

    def __init__(self, patch: pytest.MonkeyPatch, boundaries: int) -> None:
        self.remaining = boundaries
        append, request = LocalBackend.append, DomainApi.request

        def line(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
            self.pass_boundary()
            append(backend, state, *changes)

        async def sent(api: DomainApi, verb: str, *rest: Any, **more: Any) -> dict[str, Any]:
            writes = not verb.startswith(READ_ONLY_VERBS)
            if writes:
                self.pass_boundary()
            answer = await request(api, verb, *rest, **more)
            if writes:
                self.pass_boundary()
            return answer

        async def finish(backend: LocalBackend, _: State) -> None:
            await backend.close()

        patch.setattr(LocalBackend, "append", line)
        patch.setattr(DomainApi, "request", sent)
        patch.setattr(LocalBackend, "finish", finish)

    def pass_boundary(self) -> None:
        """One boundary more."""
        if self.remaining <= 0:
            raise SimulatedKill
        self.remaining -= 1


def expect_kill(boundary: int, total: int) -> AbstractContextManager[Any]:
    """Where an apply dies that passed `total` boundaries before. One of them, who the server is, is not always written."""
    return pytest.raises(SimulatedKill) if boundary < total - 1 else suppress(SimulatedKill)
