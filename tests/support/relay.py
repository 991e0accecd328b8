"""A TCP connection that can be cut: what a leafnode link goes through in tests of links that are down."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Self

from jsplan.sandbox.shapes import HOST, Layout, Node

if TYPE_CHECKING:
    from jsplan.sandbox.shapes import PortOf


class Relay:
    """Forwards connections to a port of this machine until it is cut; while it is, new ones are hung up on."""

    def __init__(self) -> None:
        self.target = 0
        self._closed = self._cut = False
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._begin(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self.cut()
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()

    def cut(self) -> None:
        """End every connection, and let no new one through."""
        with self._lock:
            self._cut = True
            for one in self._sockets:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        with self._lock:
            self._cut = False

    def _begin(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._join(near)

    def _join(self, near: socket.socket) -> None:
        with self._lock:
            if self._cut or not self.target:
                near.close()
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                near.close()
                return
            self._sockets += [near, far]
        self._begin(self._pump, near, far)
        self._begin(self._pump, far, near)

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for one in (source, sink):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


def hub_and_leaf_over(relay: Relay, port_of: PortOf) -> Layout:
    """A hub and a leaf like those of every test, whose link goes through the relay."""
    relay.target = port_of("hub.leafnodes")
    # Without `advertise` the leaf would learn the hub's own address and go round the relay.
    listen = f'leafnodes {{ listen: "{HOST}:{relay.target}", advertise: "{HOST}:{relay.port}" }}\n'
    hub = Node("hub", port_of("hub"), domain="hub", accounts=True, extra=listen)
    return Layout("hub-and-leaf", (hub, Node("leaf", port_of("leaf"), domain="leaf", accounts=True, hub=relay.port)))
