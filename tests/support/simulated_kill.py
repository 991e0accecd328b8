"""A process that dies: at the n-th thing that it would do to a server or to its journal, it does nothing more at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jsplan.jetstream import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from jsplan.state import LocalBackend, State


class SimulatedKill(Exception):
    """What a process does at kill -9: nothing more, not even its clean-up."""


class KillCounter:
    """Counts lines of the journal, requests that write, and messages; from the `last` on, nothing happens any more."""

    def __init__(self, last: int) -> None:
        self.remaining = last
        self.done = 0

    def count_or_die(self, *, writes: bool) -> None:
        """Go on, or be dead. Who only looks is not counted, but the dead do not look either."""
        if writes:
            self.remaining -= 1
        if self.remaining < 0:
            raise SimulatedKill
        self.done += writes


@contextmanager
def kill_after(after: int = 1_000_000) -> Iterator[KillCounter]:
    """Let every apply inside do so many things and then die; `done` says how many it did."""
    mortal = KillCounter(after)
    with pytest.MonkeyPatch.context() as patch:
        _patch_journal(patch, mortal)
        _patch_requests(patch, mortal)
        yield mortal


@contextmanager
def kill_at_request(verb: str, *, answered: bool) -> Iterator[None]:
    """Let an apply inside die at its first request whose subject begins with `verb`: before it, or with its answer unread."""
    with kill_after() as mortal, pytest.MonkeyPatch.context() as patch:
        request = DomainApi.request

        async def last_request(api: DomainApi, api_verb: str, *rest: Any, **options: Any) -> Any:
            if api_verb.startswith(verb):
                if answered:
                    await request(api, api_verb, *rest, **options)
                mortal.remaining = -1
            return await request(api, api_verb, *rest, **options)

        patch.setattr(DomainApi, "request", last_request)
        yield


def _patch_journal(patch: pytest.MonkeyPatch, mortal: KillCounter) -> None:
    append, finish = LocalBackend.append, LocalBackend.finish

    def dying_append(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        mortal.count_or_die(writes=True)
        append(backend, state, *changes)

    async def dying_finish(backend: LocalBackend, state: State) -> None:
        if mortal.remaining < 0:
            await backend.close()
            return
        await finish(backend, state)

    patch.setattr(LocalBackend, "append", dying_append)
    patch.setattr(LocalBackend, "finish", dying_finish)


def _patch_requests(patch: pytest.MonkeyPatch, mortal: KillCounter) -> None:
    request, publish = DomainApi.request, NatsConnection.publish

    async def dying_request(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
        mortal.count_or_die(writes=not verb.startswith(READ_ONLY_VERBS))
        return await request(api, verb, *rest, **options)

    async def dying_publish(link: NatsConnection, *rest: Any, **options: Any) -> None:
        mortal.count_or_die(writes=True)
        await publish(link, *rest, **options)

    patch.setattr(DomainApi, "request", dying_request)
    patch.setattr(NatsConnection, "publish", dying_publish)
