"""A proxy that kills a client at one request, before it arrives or before its answer.

The client does not know of it, so the real program dies. Requests are counted in their order over
all connections of the client.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tests.support.listening_server import ListeningServer

if TYPE_CHECKING:
    import subprocess

Moment = Literal["before it arrives", "before its answer"]
#: Parts of the subjects of requests that change something. A kill at others makes no difference.
WRITES = (
    ".CREATE.",
    ".UPDATE.",
    ".DELETE.",
    ".PURGE.",
    ".RESTORE.",
    ".PAUSE.",
    ".RESET.",
    "$KV.",
    ".DURABLE.",
)


def writes(subject: str) -> bool:
    """Return True for a request that changes something on the server."""
    return any(part in subject for part in WRITES)


@dataclass(frozen=True)
class KillPoint:
    """The moment of the kill: before or after the n-th request, counted from 0.

    `counted` says by the subject which requests count; without it all do.
    """

    number: int
    moment: Moment
    counted: Callable[[str], bool] | None = None


class KillProxy(ListeningServer):
    """A proxy for one client process; `seen` are the subjects of its requests."""

    def __init__(self, port: int, boundary: KillPoint | None = None) -> None:
        self.seen: list[str] = []
        self._counted = 0
        self._boundary = boundary
        self._upstream = port
        self._victim: subprocess.Popen[bytes] | None = None
        self._reply = b""
        # True for a request without a reply, such as an acknowledgement of an archive chunk.
        self._unanswered = False
        self._lock = threading.Lock()
        super().__init__(type(self).join)
        self.url = f"nats://127.0.0.1:{self.port}"

    def watch(self, victim: subprocess.Popen[bytes]) -> None:
        """Set the process to kill. Requests wait until it is known."""
        self._victim = victim

    def join(self, client: socket.socket) -> None:
        """Relay one connection of the client to its end."""
        server = self.connect(self._upstream)
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.start_thread(self._answer, server, client)
        self._forward(client, server)

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        """Forward the answers of the server up to the one that must not arrive."""
        received = b""
        with suppress(OSError):
            while data := server.recv(65536):
                received = received[-200:] + data
                if self._reply and self._reply in received:
                    self._kill()
                if not self._reply:
                    client.sendall(data)
            client.shutdown(socket.SHUT_WR)

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError, ValueError), client.makefile("rb") as stream:
            while line := stream.readline():
                words = line.split()
                if words[0] not in (b"PUB", b"HPUB"):
                    server.sendall(line)
                    continue
                frame = line + stream.read(int(words[-1]) + 2)
                reply = words[2] if len(words) == (4 if words[0] == b"PUB" else 5) else b""
                with self._lock:
                    if not self._passes(words[1].decode(), reply):
                        return
                    server.sendall(frame)
                    if self._unanswered:
                        self._kill()

    def _passes(self, subject: str, reply: bytes) -> bool:
        self.seen.append(subject)
        if self._boundary is None:
            return True
        counted = self._boundary.counted
        if counted is not None and not counted(subject):
            return self._counted <= self._boundary.number
        number, self._counted = self._counted, self._counted + 1
        if number != self._boundary.number:
            return number < self._boundary.number
        if self._boundary.moment == "before it arrives":
            self._kill()
            return False
        self._reply, self._unanswered = reply, not reply
        return True

    def _kill(self) -> None:
        while self._victim is None:
            if self.over.wait(0.01):
                return
        self._victim.kill()
        self._victim.wait()
