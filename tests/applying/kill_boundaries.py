"""Simulated kills of an apply: before a journal line, before or after a writing request."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

import pytest

from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from jsplan.state import LocalBackend, State
from tests.support.simulated_kill import create_until_death


class SimulatedKill(Exception):
    """End the process as kill -9 does, without cleanup."""


class BoundaryKiller:
    """Kill the apply at its n-th boundary: a line of the journal, or a request that writes."""

    def __init__(self, patch: pytest.MonkeyPatch, boundaries: int) -> None:
        self.remaining = boundaries
        append, request = LocalBackend.append, DomainApi.request
        create_each = DomainApi.create_each

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

        async def created(
            api: DomainApi, requests: Sequence[tuple[str, Any]], *rest: Any, **more: Any
        ) -> None:
            sent = partial(create_each, api)
            await create_until_death(sent, requests, self.pass_boundary, *rest, **more)
            for _ in requests:
                self.pass_boundary()

        async def finish(backend: LocalBackend, _: State) -> None:
            await backend.close()

        patch.setattr(LocalBackend, "append", line)
        patch.setattr(DomainApi, "request", sent)
        patch.setattr(DomainApi, "create_each", created)
        patch.setattr(LocalBackend, "finish", finish)

    def pass_boundary(self) -> None:
        """Count one boundary, and die at the last one."""
        if self.remaining <= 0:
            raise SimulatedKill
        self.remaining -= 1


def expect_kill(boundary: int, total: int) -> AbstractContextManager[Any]:
    """Expect a kill at this boundary.

    One boundary of the `total` is not always reached: the identity of the server is not always
    written.
    """
    return pytest.raises(SimulatedKill) if boundary < total - 1 else suppress(SimulatedKill)
