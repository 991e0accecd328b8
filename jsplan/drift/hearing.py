"""Hears the advisories of every connection and knows what they name: the ears of the scheduled job. Looking is left to the workflow."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from jsplan.address import Address
from jsplan.config.model import Workspace
from jsplan.drift.advisories import SUBJECTS, Who, read
from jsplan.drift.tasks import end
from jsplan.jetstream.contexts import resolve
from jsplan.jetstream.listener import Listener, listen_for_ever

#: Addresses that may wait to be looked at; where there are more, everything is looked at.
MOST: Final = 5_000

#: Says that advisories of a connection are heard, or why not.
Told = Callable[[str, bool, str], None]


class Hearing:
    """`dirty` are addresses that something is said to have happened to, `who` the last one who asked for it, as far as is known.

    `missed` is set whenever something may have gone unheard; `wake` whenever there is anything new.
    """

    def __init__(self, workspace: Workspace, environ: Mapping[str, str], told: Told, counted: Callable[[], None]) -> None:
        self.dirty: set[Address] = set()
        self.who: OrderedDict[str, Who] = OrderedDict()
        self.missed = False
        self.wake = asyncio.Event()
        self._told = told
        self._counted = counted
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._domains: dict[tuple[str, str], list[str]] = {}
        self._settings: object = None
        self._leaving: list[asyncio.Task[None]] = []
        self._connected: dict[str, asyncio.Event] = {}
        self._deaf: dict[str, str] = {}
        self.renew(workspace, environ)

    def renew(self, workspace: Workspace, environ: Mapping[str, str]) -> None:
        """Listen to what the workspace has now; connections that are as they were are kept."""
        own = [domain for domain in workspace.domains.values() if domain.same_as is None]
        domains: dict[tuple[str, str], list[str]] = {}
        for domain in own:
            domains.setdefault((domain.connection, domain.js_domain or ""), []).append(domain.key)
        self._domains = domains
        settings = {key: workspace.connections[key] for key, _ in domains}
        if settings == self._settings:
            return
        self._cancel()
        self._settings = settings
        self._connected = {key: asyncio.Event() for key in settings}
        for key, connection in settings.items():
            target = resolve(connection, environ)
            make = partial(
                Listener,
                target,
                SUBJECTS,
                heard=partial(self._heard, key),
                gap=partial(self._gap, key),
                deaf=partial(self._deafened, key),
            )
            self._tasks[key] = asyncio.create_task(listen_for_ever(make, partial(self._state_of, key)))

    async def listening(self, seconds: float) -> None:
        """Wait until every connection is heard, but no longer than that: the first look comes after it."""
        waits = [asyncio.create_task(event.wait()) for event in self._connected.values()]
        if waits:
            _, late = await asyncio.wait(waits, timeout=seconds)
            for task in late:
                task.cancel()
        self.missed = False

    def take(self) -> set[Address]:
        """What is to be looked at; afterwards nothing is."""
        taken, self.dirty = self.dirty, set()
        return taken

    def forget(self, addresses: Iterable[Address]) -> None:
        """Who did something to these was told, or is nobody's business."""
        for address in addresses:
            self.who.pop(str(address), None)

    def _heard(self, connection: str, subject: str, data: bytes) -> None:
        event = read(subject, data)
        for key in self._domains.get((connection, event.js_domain), ()) if event is not None else ():
            assert event is not None
            address = Address.of_stream(key, event.stream)
            if event.consumer:
                address = Address(key, "consumer", f"{event.stream}/{event.consumer}")
            self._note(address, event.who)

    def _note(self, address: Address, who: Who | None) -> None:
        self._counted()
        self.dirty.add(address)
        if who is not None:
            self.who[str(address)] = who
            self.who.move_to_end(str(address))
            if len(self.who) > 2 * MOST:
                self.who.popitem(last=False)
        if len(self.dirty) > MOST:
            self.dirty.clear()
            self.missed = True
        self.wake.set()

    def _gap(self, connection: str, reason: str) -> None:
        self._connected[connection].set()
        self._told(connection, connection not in self._deaf, self._deaf.get(connection, reason))
        self.missed = True
        self.wake.set()

    def _deafened(self, connection: str, reason: str) -> None:
        if not reason:
            self._deaf.pop(connection, None)
            return
        self._deaf[connection] = reason
        self._told(connection, False, reason)

    def _state_of(self, connection: str, listener: Listener | None, reason: str) -> None:
        if listener is None:
            self._told(connection, False, reason)
        else:
            self._deaf.pop(connection, None)

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        self._leaving += self._tasks.values()
        self._tasks = {}

    async def close(self) -> None:
        """Hang up everywhere."""
        self._cancel()
        await end(self._leaving)
