"""A process that dies: at the n-th thing that it would do to a server or to its journal, it does nothing more at all."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from jsplan.jetstream import DomainApi
from jsplan.jetstream.link import Link
from jsplan.jetstream.seal import READ_ONLY
from jsplan.state import LocalBackend, State


class Died(Exception):
    """What a process does at kill -9: nothing more, not even its clean-up."""


class Mortal:
    """Counts lines of the journal, requests that write, and messages; from the `last` on, nothing happens any more."""

    def __init__(self, last: int) -> None:
        self.left = last
        self.done = 0

    def live(self, *, writes: bool) -> None:
        """Go on, or be dead. Who only looks is not counted, but the dead do not look either."""
        if writes:
            self.left -= 1
        if self.left < 0:
            raise Died
        self.done += writes


@contextmanager
def dying(after: int = 1_000_000) -> Iterator[Mortal]:
    """Let every apply inside do so many things and then die; `done` says how many it did."""
    mortal = Mortal(after)
    with pytest.MonkeyPatch.context() as patch:
        _mortal_journal(patch, mortal)
        _mortal_requests(patch, mortal)
        yield mortal


@contextmanager
def dying_at(verb: str, *, answered: bool) -> Iterator[None]:
    """Let an apply inside die at its first request whose subject begins with `verb`: before it, or with its answer unread."""
    with dying() as mortal, pytest.MonkeyPatch.context() as patch:
        request = DomainApi.request

        async def last_request(api: DomainApi, api_verb: str, *rest: Any, **options: Any) -> Any:
            if api_verb.startswith(verb):
                if answered:
                    await request(api, api_verb, *rest, **options)
                mortal.left = -1
            return await request(api, api_verb, *rest, **options)

        patch.setattr(DomainApi, "request", last_request)
        yield


def _mortal_journal(patch: pytest.MonkeyPatch, mortal: Mortal) -> None:
    append, finish = LocalBackend.append, LocalBackend.finish

    def dying_append(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        mortal.live(writes=True)
        append(backend, state, *changes)

    async def dying_finish(backend: LocalBackend, state: State) -> None:
        if mortal.left < 0:
            await backend.close()
            return
        await finish(backend, state)

    patch.setattr(LocalBackend, "append", dying_append)
    patch.setattr(LocalBackend, "finish", dying_finish)


def _mortal_requests(patch: pytest.MonkeyPatch, mortal: Mortal) -> None:
    request, publish = DomainApi.request, Link.publish

    async def dying_request(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
        mortal.live(writes=not verb.startswith(READ_ONLY))
        return await request(api, verb, *rest, **options)

    async def dying_publish(link: Link, *rest: Any, **options: Any) -> None:
        mortal.live(writes=True)
        await publish(link, *rest, **options)

    patch.setattr(DomainApi, "request", dying_request)
    patch.setattr(Link, "publish", dying_publish)
