"""TCP ports that stay reserved while a server is down."""

from __future__ import annotations

import socket
import sys
from typing import TYPE_CHECKING

from jsplan.errors import SandboxError

if TYPE_CHECKING:
    from collections.abc import Mapping

HOST = "127.0.0.1"


class Ports:
    """Ports by the name of their listener (`hub`, `hub.leafnodes`), requested or free.

    A port is reserved by a socket that is bound with SO_REUSEADDR and never listens. On Linux a
    nats-server (whose sockets have SO_REUSEADDR too) can still listen on it, while no other process
    gets it: a server keeps its port over a restart. Elsewhere the socket is closed before the
    start.
    """

    def __init__(self, asked: Mapping[str, int] | None = None) -> None:
        self._asked = dict(asked or {})
        self._sockets: dict[str, socket.socket] = {}
        self._ports: dict[str, int] = {}

    def __call__(self, name: str) -> int:
        """Return the port of this listener, always the same; raise SandboxError if it is taken."""
        if name not in self._ports:
            self._sockets[name] = self._reserve(name)
            self._ports[name] = self._sockets[name].getsockname()[1]
        return self._ports[name]

    def release_for_start(self) -> None:
        """Release the ports for the servers where a reserved port cannot be listened on."""
        if not sys.platform.startswith("linux"):
            self.release()

    def release(self) -> None:
        """Release every port."""
        for held in self._sockets.values():
            held.close()
        self._sockets.clear()

    def _reserve(self, name: str) -> socket.socket:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((HOST, self._asked.get(name, 0)))
        except OSError as error:
            held.close()
            taken = (
                f"port {self._asked[name]} for {name}"
                if name in self._asked
                else f"a port for {name}"
            )
            raise SandboxError(
                f"cannot have {taken}: {error.strerror}",
                hint="Stop what listens there, or take free ports: --free-ports.",
            ) from None
        return held
