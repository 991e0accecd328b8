"""Servers that all tests of a worker share, asked over connections that stay open.

A connection for each question costs both sides several milliseconds, which two thousand tests felt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.raw import NoResponders, Raw, delete_all_streams
from tests.support.undeleted_folder import streams_folder

if TYPE_CHECKING:
    from jsplan.sandbox import Sandbox, Server


class SharedServers:
    """A sandbox that each test of a worker finds ready."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._raws: dict[str, Raw] = {}

    def make_ready(self) -> None:
        """Start what an earlier test stopped or paused; wait until the servers reach each other."""
        servers = list(self.sandbox.servers.values())
        for server in servers:
            server.resume()
        if not all(self._reaches_the_others(server) for server in servers):
            self.close()
            self.sandbox.start()

    def delete_streams(self) -> None:
        """Delete every stream for good; the servers are ready.

        While a server still removes an earlier stream of the name it would remove nothing, and the
        next stream would have the messages (tests/facts/test_leftovers.py).
        """
        for server in self.sandbox.servers.values():
            folder = streams_folder(server)
            server.wait_until(
                lambda folder=folder: not any(folder.glob(".*")),  # type: ignore[misc]
                "remove what was deleted",
            )
            delete_all_streams(self._raw(server))

    def close(self) -> None:
        """Close the connections."""
        for raw in self._raws.values():
            raw.close()
        self._raws.clear()

    def _raw(self, server: Server) -> Raw:
        if server.name not in self._raws:
            self._raws[server.name] = Raw(server.url, server.user, server.password)
        return self._raws[server.name]

    def _reaches_the_others(self, server: Server) -> bool:
        """Check whether JetStream of each other server answers here; of this one if it is alone."""
        servers = list(self.sandbox.servers.values())
        try:
            raw = self._raw(server)
            for other in [other for other in servers if other is not server] or [server]:
                domain = other.node.domain
                raw.api_ok(f"$JS.{domain}.API.INFO" if domain else "$JS.API.INFO")
        except (OSError, AssertionError, NoResponders):
            return False
        return True
