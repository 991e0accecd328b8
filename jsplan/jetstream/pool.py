"""All connections of one command, opened in parallel, once per connection entry."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Self

from jsplan.config.model import NO_CONNECTION, Connection, Domain
from jsplan.errors import ConnectError, JsplanError
from jsplan.identity import FindKnownObjects, find_no_objects
from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import ConnectionSettings, resolve_settings
from jsplan.jetstream.read_only import ReadOnlyGuard


class Pool:
    """Connections by key. A failed one is stored with its error: its domain may be offline.

    `read_only` applies to the JetStream API. With `guarded` a connection sends only requests that
    read. `known_objects` finds the objects that state knows.
    """

    def __init__(
        self,
        settings: Mapping[str, Connection],
        environ: Mapping[str, str],
        *,
        read_only: bool,
        guarded: bool = False,
        known_objects: FindKnownObjects = find_no_objects,
    ) -> None:
        self._settings = settings
        self._environ = environ
        self._read_only = read_only or guarded
        self._guarded = guarded
        self._known_objects = known_objects
        self.connections: dict[str, NatsConnection] = {}
        self._never_opened = NatsConnection(ConnectionSettings(key=NO_CONNECTION, url=""))
        self.failures: dict[str, ConnectError] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.gather(*(each.close() for each in self.connections.values()))

    async def open(self, keys: Iterable[str]) -> None:
        """Open missing connections in parallel. Raises ConnectError only for invalid settings."""
        wanted = [
            key
            for key in dict.fromkeys(keys)
            if key not in {*self.connections, *self.failures, NO_CONNECTION}
        ]
        opened = {
            key: NatsConnection(
                resolve_settings(self._settings[key], self._environ),
                ReadOnlyGuard() if self._guarded else None,
            )
            for key in wanted
        }
        for key, outcome in zip(
            wanted,
            await asyncio.gather(*(_open_connection(each) for each in opened.values())),
            strict=True,
        ):
            if outcome is None:
                self.connections[key] = opened[key]
            else:
                self.failures[key] = outcome

    def api(self, domain: Domain) -> DomainApi:
        """Return the API of a domain. Raises the ConnectError of its connection."""
        if domain.connection in self.failures:
            raise self.failures[domain.connection]
        return DomainApi(
            domain,
            self._never_opened
            if domain.connection == NO_CONNECTION
            else self.connections[domain.connection],
            read_only=self._read_only,
            known_objects=self._known_objects,
        )


async def _open_connection(connection: NatsConnection) -> ConnectError | None:
    try:
        await connection.open()
    except ConnectError as error:
        return error
    except JsplanError as error:
        return ConnectError(str(error), hint=error.hint)
    return None
