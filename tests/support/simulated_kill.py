"""A simulated death: from the n-th write to a server or the journal on, nothing happens.

A death between a write and its answer is one before the next write: only reads are between them.
In a simulated outage a domain answers nothing from the n-th write on.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pytest

from jsplan.errors import NoRespondersError
from jsplan.jetstream import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from jsplan.state import LocalBackend, State


class SimulatedKill(Exception):
    """The end of a process by SIGKILL: nothing more runs, not even clean-up."""


class KillCounter:
    """A counter of journal lines, writing requests and messages; none after `last`.

    `phases` are those that the lines recorded, in their order. With `offline` the requests to this
    domain count alone, and after `last` of them it does not answer.
    """

    def __init__(self, last: int, offline: str | None = None) -> None:
        self.remaining = last
        self.offline = offline
        self.done = 0
        self.phases: list[str] = []

    @property
    def died(self) -> bool:
        """True if anything was left to do after the last write."""
        return self.remaining < 0

    def die(self) -> NoReturn:
        """Let nothing more happen. Raises SimulatedKill."""
        self.remaining = -1
        raise SimulatedKill

    def note_phases(self, changes: Iterable[dict[str, Any]]) -> None:
        """Note the phases of a line of the journal."""
        new = (phase for phase in phases_of(changes) if phase not in self.phases)
        self.phases += dict.fromkeys(new)

    def count_or_die(self, api: DomainApi | None = None, *, writes: bool) -> None:
        """Count a write, or raise after the last one. Reads are refused then too."""
        if self.offline is not None and (api is None or api.domain.key != self.offline):
            return
        if writes:
            self.remaining -= 1
        if self.remaining < 0:
            if self.offline is None:
                raise SimulatedKill
            raise NoRespondersError(f"domain {self.offline} does not answer")
        self.done += writes


@contextmanager
def kill_after(after: int = 1_000_000) -> Iterator[KillCounter]:
    """Let every apply in the block do `after` writes and then die; `done` counts them."""
    counter = KillCounter(after)
    with pytest.MonkeyPatch.context() as patch:
        _patch_journal(patch, counter)
        _patch_requests(patch, counter)
        yield counter


@contextmanager
def offline_after(domain: str, after: int) -> Iterator[KillCounter]:
    """Let a domain do `after` writes in the block and then answer nothing more."""
    counter = KillCounter(after, domain)
    with pytest.MonkeyPatch.context() as patch:
        _patch_requests(patch, counter)
        yield counter


@contextmanager
def kill_at_request(verb: str, *, answered: bool) -> Iterator[None]:
    """Let an apply die at its first request that begins with `verb`.

    The request is sent if it is `answered`, and its answer is not read.
    """
    with kill_after() as counter, pytest.MonkeyPatch.context() as patch:
        request = DomainApi.request

        async def last_request(api: DomainApi, api_verb: str, *rest: Any, **options: Any) -> Any:
            if api_verb.startswith(verb):
                if answered:
                    await request(api, api_verb, *rest, **options)
                counter.remaining = -1
            return await request(api, api_verb, *rest, **options)

        create_each = DomainApi.create_each

        async def last_creations(
            api: DomainApi, requests: Sequence[tuple[str, Any]], *rest: Any, **options: Any
        ) -> None:
            last = next((n for n, (sent, _) in enumerate(requests) if sent.startswith(verb)), None)
            if last is None:
                await create_each(api, requests, *rest, **options)
                return
            await create_each(api, requests[: last + answered], *rest, **options)
            raise SimulatedKill

        patch.setattr(DomainApi, "request", last_request)
        patch.setattr(DomainApi, "create_each", last_creations)
        yield


@contextmanager
def kill_before_phase(phase: str) -> Iterator[None]:
    """Let an apply die when it is about to record this phase for the first time."""
    with kill_after() as counter, pytest.MonkeyPatch.context() as patch:
        append = LocalBackend.append

        def append_until_phase(
            backend: LocalBackend, state: State, *changes: dict[str, Any]
        ) -> None:
            if phase in phases_of(changes):
                counter.remaining = 0
            append(backend, state, *changes)

        patch.setattr(LocalBackend, "append", append_until_phase)
        yield


def phases_of(value: object) -> Iterator[str]:
    """Yield every phase that a line of the journal records, at any depth."""
    if isinstance(value, dict):
        if isinstance(phase := value.get("phase"), str):
            yield phase
        value = value.values()
    elif not isinstance(value, list | tuple):
        return
    for part in value:
        yield from phases_of(part)


def _patch_journal(patch: pytest.MonkeyPatch, counter: KillCounter) -> None:
    append, finish = LocalBackend.append, LocalBackend.finish

    def dying_append(backend: LocalBackend, state: State, *changes: dict[str, Any]) -> None:
        counter.count_or_die(writes=True)
        counter.note_phases(changes)
        append(backend, state, *changes)

    async def dying_finish(backend: LocalBackend, state: State) -> None:
        if counter.remaining < 0:
            await backend.close()
            return
        await finish(backend, state)

    patch.setattr(LocalBackend, "append", dying_append)
    patch.setattr(LocalBackend, "finish", dying_finish)


async def _create_until_death(
    create_each: Callable[..., Awaitable[None]],
    requests: Sequence[tuple[str, Any]],
    count: Callable[[], None],
    *rest: Any,
    **options: Any,
) -> None:
    """Send creations together; those before the one that `count` dies at arrive."""
    sent = 0
    try:
        for _ in requests:
            count()
            sent += 1
    finally:
        await create_each(requests[:sent], *rest, **options)


def _patch_requests(patch: pytest.MonkeyPatch, counter: KillCounter) -> None:
    request, publish = DomainApi.request, NatsConnection.publish
    create_each = DomainApi.create_each
    store = DomainApi.store_message

    async def dying_request(api: DomainApi, verb: str, *rest: Any, **options: Any) -> Any:
        counter.count_or_die(api, writes=not verb.startswith(READ_ONLY_VERBS))
        return await request(api, verb, *rest, **options)

    async def dying_create_each(
        api: DomainApi, requests: Sequence[tuple[str, Any]], *rest: Any, **options: Any
    ) -> None:
        count = partial(counter.count_or_die, api, writes=True)
        await _create_until_death(partial(create_each, api), requests, count, *rest, **options)

    async def dying_publish(link: NatsConnection, *rest: Any, **options: Any) -> None:
        counter.count_or_die(writes=True)
        await publish(link, *rest, **options)

    async def dying_store(api: DomainApi, *rest: Any, **options: Any) -> dict[str, Any]:
        counter.count_or_die(api, writes=True)
        return await store(api, *rest, **options)

    patch.setattr(DomainApi, "request", dying_request)
    patch.setattr(DomainApi, "create_each", dying_create_each)
    patch.setattr(DomainApi, "store_message", dying_store)
    patch.setattr(NatsConnection, "publish", dying_publish)
