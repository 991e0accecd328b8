"""A process that dies in an apply: before a line of the journal, before a request that writes, or after one."""

from __future__ import annotations

from contextlib import AbstractContextManager, suppress
from typing import Any

import pytest

from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.seal import READ_ONLY
from jsplan.state import LocalBackend, State


class Died(Exception):
    """What a process does at kill -9: nothing more, not even its clean-up."""


class Mortal:
    """Dies at its n-th boundary: before a line of the journal, before a request that writes, or after it."""

    def __init__(self, patch: pytest.MonkeyPatch, boundaries: int) -> None:
        self.left = boundaries
        append, request = LocalBackend.append, DomainApi.request

        def line(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
            self.pass_one()
            append(backend, state, *changes)

        async def sent(api: DomainApi, verb: str, *rest: Any, **more: Any) -> dict[str, Any]:
            writes = not verb.startswith(READ_ONLY)
            if writes:
                self.pass_one()
            answer = await request(api, verb, *rest, **more)
            if writes:
                self.pass_one()
            return answer

        async def finish(backend: LocalBackend, _: State) -> None:
            await backend.close()

        patch.setattr(LocalBackend, "append", line)
        patch.setattr(DomainApi, "request", sent)
        patch.setattr(LocalBackend, "finish", finish)

    def pass_one(self) -> None:
        """One boundary more."""
        if self.left <= 0:
            raise Died
        self.left -= 1


def death(boundary: int, total: int) -> AbstractContextManager[Any]:
    """Where an apply dies that passed `total` boundaries before. One of them, who the server is, is not always written."""
    return pytest.raises(Died) if boundary < total - 1 else suppress(Died)
