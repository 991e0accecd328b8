"""A tiny blocking NATS client over a bare socket: what tests ask the server with, independent of all code of jsplan."""

from __future__ import annotations

import itertools
import json
import os
import socket
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from tests.support import jwt

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class NoResponders(Exception):
    """Nobody listens on the subject."""


class Raw:
    """One connection as one user; a wait of more than `timeout` seconds raises TimeoutError."""

    def __init__(
        self,
        url: str,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 5.0,
        creds: Path | None = None,
    ) -> None:
        place = urlsplit(url)
        self._socket = socket.create_connection(
            (place.hostname, place.port or 4222), timeout=timeout
        )
        self._socket.setsockopt(
            socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
        )  # else every request waits 40 ms for an ack
        self._stream = self._socket.makefile("rb")
        self._numbers = itertools.count(2)
        try:
            self._log_in(user or place.username, password or place.password, creds)
        except BaseException:
            self.close()
            raise

    def _log_in(self, user: str | None, password: str | None, creds: Path | None) -> None:
        self.info: dict[str, Any] = json.loads(self._stream.readline().removeprefix(b"INFO "))
        options: dict[str, Any] = {
            "verbose": False,
            "pedantic": False,
            "headers": True,
            "no_responders": True,
            "lang": "raw",
            "version": "0",
        }
        login = {"user": user, "pass": password}
        options |= jwt.login(creds, self.info["nonce"]) if creds else login if user else {}
        self._send(b"CONNECT " + json.dumps(options).encode() + b"\r\n")
        self.flush()

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
        """Hang up."""
        self._stream.close()
        self._socket.close()

    def flush(self) -> None:
        """Wait until the server has taken everything that was sent; raises AssertionError if it complains."""
        self._send(b"PING\r\n")
        self._wait(b"PONG")

    def publish(
        self,
        subject: str,
        payload: bytes = b"",
        headers: dict[str, str] | None = None,
        reply: str = "",
    ) -> None:
        """Send one message, without an ack."""
        to = f"{subject} {reply}".strip()
        if not headers:
            self._send(f"PUB {to} {len(payload)}\r\n".encode() + payload + b"\r\n")
            return
        head = (
            "NATS/1.0\r\n"
            + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            + "\r\n"
        ).encode()
        self._send(
            f"HPUB {to} {len(head)} {len(head) + len(payload)}\r\n".encode()
            + head
            + payload
            + b"\r\n"
        )

    def subscribe(self, subject: str, *, wait: bool = True) -> None:
        """Receive what is published on the subject; `next_message` hands it out. Where it comes at once, do not `wait` for the server."""
        self._send(f"SUB {subject} 1\r\n".encode())
        if wait:
            self.flush()

    def publish_raw(self, subject: str, block: bytes, payload: bytes) -> None:
        """Send one message with a header block exactly as given, or without headers when that is empty."""
        size = len(block) + len(payload)
        line = f"HPUB {subject} {len(block)} {size}\r\n" if block else f"PUB {subject} {size}\r\n"
        self._send(line.encode() + block + payload + b"\r\n")

    def unsubscribe(self) -> None:
        """Receive no more of it."""
        self._send(b"UNSUB 1\r\n")
        self.flush()

    def next_message(self) -> tuple[str, dict[str, str], bytes]:
        """Subject, headers (with `Status` where the server sent one) and payload of the next message."""
        words = self._wait(b"MSG", b"HMSG")
        body = self._stream.read(int(words[-1]) + 2)[:-2]
        size = int(words[-2]) if words[0] == b"HMSG" else 0
        return words[1].decode(), _headers(body[:size]), body[size:]

    def next_with_reply(self) -> tuple[str, str, dict[str, str], bytes]:
        """Subject, reply subject (empty: none), headers and payload of the next message."""
        words = self._wait(b"MSG", b"HMSG")
        body = self._stream.read(int(words[-1]) + 2)[:-2]
        size = int(words[-2]) if words[0] == b"HMSG" else 0
        reply = words[3].decode() if len(words) == (6 if size else 5) else ""
        return words[1].decode(), reply, _headers(body[:size]), body[size:]

    def next_reply(self) -> str:
        """Where the next message wants its answer; raises AssertionError when it wants none, as a status does."""
        words = self._wait(b"MSG", b"HMSG")
        self._stream.read(int(words[-1]) + 2)
        assert len(words) == (6 if words[0] == b"HMSG" else 5), words
        return words[3].decode()

    def request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Headers and payload of the first answer; raises NoResponders when nobody listens."""
        inbox = f"_INBOX.{os.urandom(9).hex()}"
        number = next(
            self._numbers
        )  # one that was used a moment ago may not be free yet on the server, which then ignores the SUB
        self._send(f"SUB {inbox} {number}\r\nUNSUB {number} 1\r\n".encode())
        self.publish(subject, payload, headers, reply=inbox)
        while True:
            where, answered, body = self.next_message()
            if where == inbox:
                break
        if answered.get("Status") == "503":
            raise NoResponders(subject)
        return answered, body

    def api(self, subject: str, payload: Any = None) -> dict[str, Any]:
        """The JSON answer of a JetStream API subject, errors included. `payload` is anything that JSON can say, or bytes."""
        data = (
            payload
            if isinstance(payload, bytes)
            else b""
            if payload is None
            else json.dumps(payload).encode()
        )
        answer = json.loads(self.request(subject, data)[1])
        assert isinstance(answer, dict)
        return answer

    def api_ok(self, subject: str, payload: Any = None) -> dict[str, Any]:
        """As `api`, but an error in the answer raises AssertionError."""
        answer = self.api(subject, payload)
        assert "error" not in answer, f"{subject}: {answer['error']}"
        return answer

    def _wait(self, *wanted: bytes) -> list[bytes]:
        while True:
            line = self._stream.readline()
            assert line, "the server hung up"
            words = line.split()
            if words[0] in wanted:
                return words
            if words[0] == b"PING":
                self._send(b"PONG\r\n")
            assert words[0] != b"-ERR", line.decode()

    def _send(self, data: bytes) -> None:
        self._socket.sendall(data)


def api(
    url: str, user: str | None, password: str | None, subject: str, payload: Any = None
) -> dict[str, Any]:
    """One request on a connection of its own: the JSON answer, errors included; raises NoResponders or TimeoutError."""
    with Raw(url, user, password) as raw:
        return raw.api(subject, payload)


def publish(
    url: str,
    user: str | None,
    password: str | None,
    subject: str,
    *payloads: bytes,
    headers: dict[str, str] | None = None,
) -> None:
    """Publish to a stream, one message after the other, each with its ack; raises AssertionError when one is refused."""
    with Raw(url, user, password) as raw:
        for payload in payloads:
            ack = json.loads(raw.request(subject, payload, headers)[1])
            assert "error" not in ack, f"{subject}: {ack['error']}"


def streams(raw: Raw, prefix: str = "$JS.API") -> list[str]:
    """The names of all streams behind an API prefix, page by page."""
    names: list[str] = []
    while True:
        page = raw.api_ok(f"{prefix}.STREAM.NAMES", {"offset": len(names)})
        names += page["streams"] or []
        if not page["streams"] or len(names) >= page["total"]:
            return names


def delete_all_streams(raw: Raw, prefix: str = "$JS.API") -> None:
    """Leave nothing behind an API prefix; consumers, buckets and object stores go with their streams."""
    for name in streams(raw, prefix):
        raw.api_ok(f"{prefix}.STREAM.DELETE.{name}")


def _headers(head: bytes) -> dict[str, str]:
    first, _, rest = head.decode().partition("\r\n")
    words = first.split(" ", 2)
    found = {"Status": words[1]} if len(words) > 1 else {}
    for line in rest.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            found[name] = value.strip()
    return found
