"""A blocking client that asks an embedded server whether it is ready.

The sandbox is used inside and outside of event loops, so this client does not use asyncio.
"""

from __future__ import annotations

import base64
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Self

import nkeys  # type: ignore[import-untyped]  # it has no stubs

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

    from jsplan.sandbox.shapes import User

HOST = "127.0.0.1"


class Probe:
    """One short-lived client connection; every failure is an OSError, also a refused login.

    `timeout` is seconds for each wait. `info` is the server's INFO.
    """

    def __init__(self, port: int, user: User | None = None, timeout: float = 2.0) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=timeout)
        self._socket.settimeout(timeout)
        self._stream = self._socket.makefile("rb")
        try:
            self.info: dict[str, Any] = json.loads(self._read_line().removeprefix(b"INFO "))
            self._connect(user)
        except ValueError as error:
            self.close()
            raise ConnectionError(f"no NATS server on port {port}: {error}") from None
        except OSError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def request(self, subject: str, payload: bytes = b"") -> dict[str, Any] | None:
        """Return the JSON answer; None if the subject has no subscriber.

        Raises TimeoutError when no answer comes.
        """
        inbox = f"_INBOX.{os.urandom(8).hex()}"
        self._write(
            f"SUB {inbox} 1\r\nUNSUB 1 1\r\nPUB {subject} {inbox} {len(payload)}\r\n".encode()
            + payload
            + b"\r\n"
        )
        words = self._read_until(b"MSG", b"HMSG")
        body = self._stream.read(int(words[-1]) + 2)[:-2]
        if words[0] == b"HMSG":
            body = body[int(words[-2]) :]
        answer = json.loads(body) if body else None
        return answer if isinstance(answer, dict) else None

    def _connect(self, user: User | None) -> None:
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "protocol": 1,
        }
        options |= {"name": "jsplan sandbox", "lang": "python", "version": "0"}
        if user is not None and user.creds:
            options |= _jwt_login(user.creds, self.info["nonce"])
        elif user is not None and user.user:
            options |= {"user": user.user, "pass": user.password}
        self._write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
        self._read_until(b"PONG")

    def _read_until(self, *wanted: bytes) -> list[bytes]:
        while True:
            words = self._read_line().split()
            if words and words[0] in wanted:
                return words
            if words and words[0] == b"PING":
                self._write(b"PONG\r\n")
            if words and words[0] == b"-ERR":
                raise ConnectionRefusedError(b" ".join(words).decode())

    def _read_line(self) -> bytes:
        line = self._stream.readline()
        if not line:
            raise ConnectionResetError("the server hung up")
        return line.rstrip(b"\r\n")

    def _write(self, data: bytes) -> None:
        self._socket.sendall(data)


def _jwt_login(creds: Path, nonce: str) -> dict[str, str]:
    """Return the login of the user of a creds file: its JWT, and the signed nonce of the server."""
    words = [
        line
        for line in creds.read_text("utf-8").splitlines()
        if line and not line.startswith(("-", "*"))
    ]
    signature = nkeys.from_seed(bytearray(words[-1].encode())).sign(nonce.encode())
    return {"jwt": words[0], "sig": base64.urlsafe_b64encode(signature).decode().rstrip("=")}
