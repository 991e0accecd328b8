"""A TCP relay that can be cut, for tests of leafnode links that are down."""

from __future__ import annotations

import random
import socket
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from jsplan.sandbox.shapes import HOST, Layout, Node
from tests.support.listening_server import ListeningServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from jsplan.sandbox.shapes import PortOf


class Relay(ListeningServer):
    """A relay to a local port; while it is cut, it closes new connections."""

    def __init__(self) -> None:
        self.target = 0
        self._cut = False
        self._lock = threading.Lock()
        super().__init__(type(self).join)

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.cut()
        super().__exit__()

    def cut(self) -> None:
        """End every connection and refuse new ones."""
        with self._lock:
            self._cut = True
            for each in list(self._open):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Accept connections again."""
        with self._lock:
            self._cut = False

    def join(self, near: socket.socket) -> None:
        """Relay one connection to its end."""
        with self._lock:
            if self._cut or not self.target:
                return
            far = self.connect(self.target)
        self.start_thread(self._pump, near, far, self._up)
        self._pump(far, near, self._down)

    def _up(self, data: bytes) -> bytes:
        """Return the bytes that the target receives. Raise OSError to end the connection."""
        return data

    def _down(self, data: bytes) -> bytes:
        """Return the bytes that the client receives. Raise OSError to end the connection."""
        return data

    @staticmethod
    def _pump(
        source: socket.socket, sink: socket.socket, through: Callable[[bytes], bytes]
    ) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(through(data))
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class Slow(Relay):
    """A relay whose answers arrive `seconds` later."""

    def __init__(self, target: int, seconds: float) -> None:
        self._seconds = seconds
        super().__init__()
        self.target = target

    def _down(self, data: bytes) -> bytes:
        time.sleep(self._seconds)
        return data


Failure = Literal["reset", "hole", "garbage"]


class Failing(Relay):
    """A relay that fails for good after `after` bytes of answers, over all connections.

    `reset` ends all connections and accepts no new one. `hole` forwards nothing more. `garbage`
    answers with random bytes.
    """

    def __init__(self, target: int, failure: Failure, after: float) -> None:
        self.answered = 0
        self._failure, self._after = failure, after
        self._noise = random.Random(7)
        super().__init__()
        self.target = target

    def _down(self, data: bytes) -> bytes:
        self.answered += len(data)
        if self.answered <= self._after:
            return data
        if self._failure == "garbage":
            return self._noise.randbytes(len(data))
        if self._failure == "reset":
            self.cut()
        else:
            self.over.wait()
        raise OSError


class Clogged(Relay):
    """A relay that forwards no request after `after` bytes of them; `is_clogged` is set then."""

    def __init__(self, target: int, after: int) -> None:
        self.is_clogged = threading.Event()
        self._remaining = after
        super().__init__()
        self.target = target

    def _up(self, data: bytes) -> bytes:
        self._remaining -= len(data)
        if self._remaining >= 0:
            return data
        self.is_clogged.set()
        self.over.wait()
        raise OSError


def hub_and_leaf_over(relay: Relay, port_of: PortOf) -> Layout:
    """A hub and a leaf as in other tests, whose link goes through the relay."""
    relay.target = port_of("hub.leafnodes")
    # Without `advertise` the leaf would learn the address of the hub and bypass the relay.
    listen = f'leafnodes {{ listen: "{HOST}:{relay.target}", advertise: "{HOST}:{relay.port}" }}\n'
    hub = Node("hub", port_of("hub"), domain="hub", accounts=True, extra=listen)
    return Layout(
        "hub-and-leaf",
        (hub, Node("leaf", port_of("leaf"), domain="leaf", accounts=True, hub=relay.port)),
    )
