"""A small blocking NATS client over a socket, independent of the code of jsplan."""

from __future__ import annotations

import itertools
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from tests.support import jwt
from tests.support.waiting import PATIENCE, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path


#: The error of a stream that does not exist.
STREAM_NOT_FOUND = 10059


class NoResponders(Exception):
    """The server reported that no client listens on the subject."""


class Raw:
    """One connection as one user; a wait of more than `timeout` s raises TimeoutError."""

    def __init__(
        self,
        url: str,
        user: str | None = None,
        password: str | None = None,
        timeout: float = 5.0,
        creds: Path | None = None,
    ) -> None:
        parts = urlsplit(url)
        self._socket = socket.create_connection(
            (parts.hostname, parts.port or 4222), timeout=timeout
        )
        # Without it every request waits 40 ms for a TCP ack.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._inbox = f"_INBOX.{os.urandom(9).hex()}"
        self._numbers = itertools.count()
        try:
            self._log_in(user or parts.username, password or parts.password, creds)
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()

    def flush(self) -> None:
        """Wait until the server has taken everything; raise AssertionError on an error."""
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
        self._send(encode(subject, payload, headers, reply))

    def publish_all(self, messages: Iterable[bytes]) -> None:
        """Send what `encode` returned for each message, many at once, without acks."""
        block = bytearray()
        for message in messages:
            block += message
            if len(block) > 64_000:  # each block has the time of the connection for itself
                self._send(block)
                block.clear()
        self._send(block)

    def subscribe(self, subject: str, *, wait: bool = True) -> None:
        """Subscribe to a subject, for `next_message`.

        `wait` until the server has the subscription, unless a message comes at once.
        """
        self._send(f"SUB {subject} 1\r\n".encode())
        if wait:
            self.flush()

    def publish_raw(self, subject: str, block: bytes, payload: bytes) -> None:
        """Send one message with this exact header block; empty means no headers."""
        self._send(encode_raw(subject, block, payload))

    def unsubscribe(self) -> None:
        """End the subscription."""
        self._send(b"UNSUB 1\r\n")
        self.flush()

    def next_message(self) -> tuple[str, dict[str, str], bytes]:
        """Return subject, headers and payload of the next message.

        The headers have `Status` where the server sent one.
        """
        words, body = self._receive(b"1")
        size = int(words[-2]) if words[0] == b"HMSG" else 0
        return words[1].decode(), _headers(body[:size]), body[size:]

    def next_with_reply(self) -> tuple[str, str, dict[str, str], bytes]:
        """Return subject, reply subject (or ""), headers and payload of the next message."""
        words, body = self._receive(b"1")
        size = int(words[-2]) if words[0] == b"HMSG" else 0
        reply = words[3].decode() if len(words) == (6 if size else 5) else ""
        return words[1].decode(), reply, _headers(body[:size]), body[size:]

    def next_reply(self) -> str:
        """Return the reply subject of the next message; raise AssertionError without one."""
        words, _ = self._receive(b"1")
        assert len(words) == (6 if words[0] == b"HMSG" else 5), words
        return words[3].decode()

    def request(
        self, subject: str, payload: bytes = b"", headers: dict[str, str] | None = None
    ) -> tuple[dict[str, str], bytes]:
        """Return headers and payload of the first answer; raise NoResponders without listeners."""
        return self.request_all(subject, [payload], headers)[0]

    def request_all(
        self, subject: str, payloads: Sequence[bytes], headers: dict[str, str] | None = None
    ) -> list[tuple[dict[str, str], bytes]]:
        """Send a request with each payload at once; return their first answers, as `request` does."""
        # One subscription for all: a server sends each new one to all that it is linked to.
        first = next(self._numbers)
        inboxes = [f"{self._inbox}.{first}.{index}" for index in range(len(payloads))]
        requests = [
            encode(subject, payload, headers, inbox)
            for payload, inbox in zip(payloads, inboxes, strict=True)
        ]
        subscribe = f"SUB {self._inbox}.> 2\r\n".encode() if first == 0 else b""
        self._send(subscribe + b"".join(requests))
        answers: dict[str, tuple[dict[str, str], bytes]] = {}
        while len(answers) < len(payloads):
            words, body = self._receive(b"2")
            inbox = words[1].decode()
            if inbox.startswith(f"{self._inbox}.{first}."):
                size = int(words[-2]) if words[0] == b"HMSG" else 0
                answers.setdefault(inbox, (_headers(body[:size]), body[size:]))
        if any(answered.get("Status") == "503" for answered, _ in answers.values()):
            raise NoResponders(subject)
        return [answers[inbox] for inbox in inboxes]

    def api(self, subject: str, payload: Any = None) -> dict[str, Any]:
        """Return the JSON answer of a JetStream API subject, errors included.

        `payload` is bytes, or anything that JSON can express.
        """
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
        """Return the answer like `api`, but raise AssertionError for an error."""
        answer = self.api(subject, payload)
        assert "error" not in answer, f"{subject}: {answer['error']}"
        return answer

    def api_level(self) -> int:
        """Return the API level of the server; servers before 2.11 have none."""
        return int((self.api_ok("$JS.API.INFO").get("api") or {}).get("level") or 0)

    def state(self, stream: str, domain: str = "") -> dict[str, Any]:
        """Return the state of a stream."""
        return dict(self.api_ok(f"{api_prefix(domain)}.STREAM.INFO.{stream}")["state"])

    def config(self, stream: str, domain: str = "") -> dict[str, Any]:
        """Return the configuration of a stream."""
        return dict(self.api_ok(f"{api_prefix(domain)}.STREAM.INFO.{stream}")["config"])

    def count(self, stream: str, domain: str = "") -> int:
        """Return the number of messages of a stream."""
        return int(self.state(stream, domain)["messages"])

    def wait_for(self, stream: str, count: int, domain: str = "") -> None:
        """Wait until a stream has so many messages."""
        what = f"{stream} to have {count} messages"
        wait_until(lambda: self.count(stream, domain) == count, what)

    def create(self, stream: str, domain: str = "", **config: Any) -> dict[str, Any]:
        """Create a stream; return the answer."""
        body = {"name": stream} | config
        return self.api_ok(f"{api_prefix(domain)}.STREAM.CREATE.{stream}", body)

    def update(self, stream: str, domain: str = "", **fields: Any) -> None:
        """Change fields of a stream."""
        body = self.config(stream, domain) | fields
        self.api_ok(f"{api_prefix(domain)}.STREAM.UPDATE.{stream}", body)

    def consumer(
        self, stream: str, name: str, domain: str = "", *, action: str = "", **config: Any
    ) -> dict[str, Any]:
        """Create or change a durable consumer, which acknowledges each message; return the answer."""
        body = {"name": name, "durable_name": name, "ack_policy": "explicit"} | config
        return self.api_ok(
            f"{api_prefix(domain)}.CONSUMER.CREATE.{stream}.{name}",
            {"stream_name": stream, "action": action, "config": body},
        )

    def consumer_info(self, stream: str, name: str, domain: str = "") -> dict[str, Any]:
        """Return what the server says of a consumer."""
        return self.api_ok(f"{api_prefix(domain)}.CONSUMER.INFO.{stream}.{name}")

    def consumer_names(self, stream: str, domain: str = "") -> list[str]:
        """Return the names of the consumers of a stream."""
        return self.api_ok(f"{api_prefix(domain)}.CONSUMER.NAMES.{stream}")["consumers"] or []

    def delete(self, stream: str, *sequences: int, domain: str = "") -> None:
        """Delete messages, which leaves gaps."""
        for seq in sequences:
            self.api_ok(f"{api_prefix(domain)}.STREAM.MSG.DELETE.{stream}", {"seq": seq})

    def pull(
        self, stream: str, consumer: str, count: int, domain: str = "", *, wait: bool = True
    ) -> list[str]:
        """Take `count` messages of a consumer and return their reply subjects.

        As clients do, it asks again until all have come; without `wait` for what is there now.
        """
        inbox, replies = f"_INBOX.{os.urandom(9).hex()}", list[str]()
        self.subscribe(inbox)
        end = time.monotonic() + PATIENCE
        while len(replies) < count:
            assert time.monotonic() < end, f"{consumer} delivers {len(replies)} of {count} messages"
            request = {"batch": count - len(replies)}
            request |= {"expires": 2_000_000_000} if wait else {"no_wait": True}
            verb = f"{api_prefix(domain)}.CONSUMER.MSG.NEXT.{stream}.{consumer}"
            self.publish(verb, json.dumps(request).encode(), reply=inbox)
            while len(replies) < count:
                _, reply, headers, _ = self.next_with_reply()
                if "Status" in headers:
                    break
                replies.append(reply)
            if not wait:
                break
        self.unsubscribe()
        return replies

    def ack(self, replies: Iterable[str]) -> None:
        """Acknowledge messages, each with the answer of the server."""
        for reply in replies:
            self.request(reply, b"+ACK")

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

    def _receive(self, subscription: bytes) -> tuple[list[bytes], bytes]:
        """Return line and body of the next message of a subscription; drop those of the other."""
        while True:
            words = self._wait(b"MSG", b"HMSG")
            body = self._stream.read(int(words[-1]) + 2)[:-2]
            if words[2] == subscription:
                return words, body

    def _send(self, data: bytes | bytearray) -> None:
        self._socket.sendall(data)


def api_prefix(domain: str) -> str:
    """Return the prefix of the JetStream API of a domain, or of the server itself."""
    return f"$JS.{domain}.API" if domain else "$JS.API"


def encode(
    subject: str, payload: bytes = b"", headers: dict[str, str] | None = None, reply: str = ""
) -> bytes:
    """Return what sends one message."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    block = f"NATS/1.0\r\n{lines}\r\n".encode() if headers else b""
    return encode_raw(f"{subject} {reply}".strip(), block, payload)


def encode_raw(subject: str, block: bytes, payload: bytes) -> bytes:
    """Return what sends one message with this exact header block; empty means no headers."""
    size = len(block) + len(payload)
    line = f"HPUB {subject} {len(block)} {size}\r\n" if block else f"PUB {subject} {size}\r\n"
    return line.encode() + block + payload + b"\r\n"


def api(
    url: str, user: str | None, password: str | None, subject: str, payload: Any = None
) -> dict[str, Any]:
    """Send one request on its own connection and return the JSON answer.

    Errors are returned. Raises NoResponders or TimeoutError.
    """
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
    """Publish messages to a stream in order; raise AssertionError if one is refused."""
    with Raw(url, user, password) as raw:
        for _, body in raw.request_all(subject, payloads, headers):
            ack = json.loads(body)
            assert "error" not in ack, f"{subject}: {ack['error']}"


def streams(raw: Raw, prefix: str = "$JS.API") -> list[str]:
    """Return the names of all streams behind an API prefix, page by page."""
    names: list[str] = []
    while True:
        page = raw.api_ok(f"{prefix}.STREAM.NAMES", {"offset": len(names)})
        names += page["streams"] or []
        if not page["streams"] or len(names) >= page["total"]:
            return names


def delete_all_streams(raw: Raw, prefix: str = "$JS.API") -> None:
    """Delete all streams behind an API prefix, with their consumers, buckets and stores.

    A cluster may list for a moment what is deleted already.
    """
    for name in streams(raw, prefix):
        error = raw.api(f"{prefix}.STREAM.DELETE.{name}").get("error")
        assert error is None or error["err_code"] == STREAM_NOT_FOUND, f"{name}: {error}"


def _headers(head: bytes) -> dict[str, str]:
    first, _, rest = head.decode().partition("\r\n")
    words = first.split(" ", 2)
    headers = {"Status": words[1]} if len(words) > 1 else {}
    for line in rest.split("\r\n"):
        name, colon, value = line.partition(":")
        if colon:
            headers[name] = value.strip()
    return headers
