"""The streams that a read has as one table: the one of its options, or those of a workspace."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from jsplan.address import STAGING_PREFIX, Address, matches, matches_any
from jsplan.backfill.protocol import RawConnection
from jsplan.backfill.protocol.stream_info import StreamInfo, fetch_stream_info, request_api
from jsplan.backfill.spark.options import Options
from jsplan.backfill.spark.plain_errors import SourceError
from jsplan.backfill.tasks.endpoints import Endpoint, export_connection
from jsplan.config import load
from jsplan.config.model import Domain, LoadOptions, Workspace
from jsplan.errors import ApiError, ConnectError
from jsplan.jetstream.contexts import resolve_settings


@dataclass(frozen=True)
class SourceStream:
    """One stream, as the driver and each executor reach it.

    `domain` is its JetStream domain, as the column `domain` has it; empty: none. Without an
    `endpoint`, the options of the read say how to connect.
    """

    domain: str
    stream: str
    api_prefix: str
    endpoint: Endpoint | None = None

    @property
    def key(self) -> str:
        """The name of the stream in an offset."""
        return f"{self.domain}/{self.stream}"

    def connect(self, options: Options) -> RawConnection:
        """Open a connection. Raises ConnectError and UsageError."""
        if self.endpoint is not None:
            return self.endpoint.open()
        return RawConnection(options.target())

    @contextlib.contextmanager
    def open(self, options: Options) -> Iterator[tuple[RawConnection, StreamInfo]]:
        """Open a connection, and fetch the state. Raises ApiError, ConnectError and UsageError."""
        connection = self.connect(options)
        try:
            yield connection, fetch_stream_info(connection, self.api_prefix, self.stream)
        finally:
            connection.close()


class SourceStreams(NamedTuple):
    """The streams of a read in the order of their names, and the domains that do not answer."""

    streams: list[SourceStream]
    silent: dict[str, str]

    def require_answers(self) -> list[SourceStream]:
        """Return the streams. Raises SourceError for a domain that does not answer."""
        for domain, reason in self.silent.items():
            raise SourceError(f"domain {domain} cannot be read: {reason}")
        return self.streams


def find_streams(options: Options) -> SourceStreams:
    """Return the stream of the options, or the streams of a workspace that `streams` selects.

    Raises ConfigError, UsageError and ConnectError.
    """
    if options["workspace"] is None:
        one = SourceStream(options.domain, options.stream, options.api_prefix)
        return SourceStreams([one], {})
    environ = dict(os.environ)
    workspace = load(LoadOptions(Path(options["workspace"]), environ=environ))
    globs, found = options.globs, SourceStreams([], {})
    for domain in workspace.domains.values():
        selects = [glob for glob in globs if matches(glob.partition("/")[0], domain.key)]
        if domain.same_as is not None or not selects:
            continue
        endpoint, name = _export(workspace, domain, environ), domain.js_domain or domain.key
        try:
            listed = _list_streams(domain, endpoint, selects)
        except (ApiError, ConnectError) as error:
            found.silent[name] = error.full_text
            continue
        found.streams.extend(
            SourceStream(name, stream, domain.api_prefix, endpoint) for stream in listed
        )
    found.streams.sort(key=lambda one: one.key)
    return found


def _export(workspace: Workspace, domain: Domain, environ: dict[str, str]) -> Endpoint:
    """Return the endpoint of a domain, with its connection as the files have it."""
    connection = workspace.connections[domain.connection]
    export_connection(resolve_settings(connection, environ), connection.declared)
    return Endpoint(domain.connection, domain.api_prefix)


def _list_streams(domain: Domain, endpoint: Endpoint, globs: list[str]) -> list[str]:
    """Return the names of the streams of a domain that a glob matches, by STREAM.NAMES."""
    connection = endpoint.open()
    try:
        names, total = list[str](), 1
        while len(names) < total:
            page = request_api(
                connection, domain.api_prefix, "STREAM.NAMES", {"offset": len(names)}
            )
            listed = page.get("streams") or []
            total, names = int(page.get("total") or 0) if listed else 0, names + listed
    finally:
        connection.close()
    return [
        name
        for name in names
        if not name.startswith(STAGING_PREFIX)
        and matches_any(globs, Address.of_stream(domain.key, name))
    ]
