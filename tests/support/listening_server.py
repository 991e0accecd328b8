"""A server of a test on loopback; a function serves each connection."""

from __future__ import annotations

import json
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable


class ListeningServer:
    """A server on a free port that gives each connection to `serve`, in its own thread.

    `received` is everything that `serve` read with `read`. `connections` counts the connections.
    """

    def __init__(self, serve: Callable[[Any, socket.socket], None]) -> None:
        self._serve = serve
        self.received = bytearray()
        self.connections = 0
        self.over = threading.Event()
        self._open: list[socket.socket] = []
        self._keeping = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.start_thread(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._keeping:
            self.over.set()
            opened = (self._server, *self._open)
        for each in opened:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in (self._server, *self._open):
            each.close()

    def read(self, stream: socket.socket) -> bytes:
        """Read the next bytes and keep them; empty at the end of the connection."""
        data = stream.recv(1 << 16)
        self.received += data
        return data

    def connect(self, port: int) -> socket.socket:
        """Connect to a local port, until the end of this server."""
        stream = socket.create_connection(("127.0.0.1", port))
        self._keep(stream)
        return stream

    def _keep(self, stream: socket.socket) -> None:
        """Keep a connection until the end of this server, which may have come meanwhile."""
        with self._keeping:
            self._open.append(stream)
            if self.over.is_set():
                stream.shutdown(socket.SHUT_RDWR)

    def start_thread(self, work: Callable[..., None], *arguments: object) -> None:
        """Start a thread that ends with this server."""
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self.over.is_set():
                stream, _ = self._server.accept()
                self.connections += 1
                self._keep(stream)
                self.start_thread(self._serve_one, stream)

    def _serve_one(self, stream: socket.socket) -> None:
        with suppress(OSError):
            self._serve(self, stream)
        with suppress(OSError):
            stream.shutdown(socket.SHUT_RDWR)


def info_line(**more: Any) -> bytes:
    """The first line that a nats-server sends."""
    info = {
        "server_id": "X",
        "server_name": "x",
        "version": "2.11.0",
        "proto": 1,
        "headers": True,
        "max_payload": 1 << 20,
        "nonce": "abc",
    }
    return b"INFO " + json.dumps(info | more).encode() + b"\r\n"


def serve_greeting(**more: Any) -> Callable[[ListeningServer, socket.socket], None]:
    """Serve as a nats-server that accepts every credential and answers only PING."""

    def serve(server: ListeningServer, stream: socket.socket) -> None:
        stream.sendall(info_line(**more))
        while data := server.read(stream):
            if b"PING\r\n" in data:
                stream.sendall(b"PONG\r\n")

    return serve
