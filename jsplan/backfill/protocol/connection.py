"""Blocking connection to a server: TLS, authentication, requests, and raw bytes.

It takes the same settings as nats-py (`jetstream.contexts.ConnectionSettings`) and logs in with the
same code (`jetstream.login`), but uses no asyncio and creates no object per message.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import ssl
import time
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

from jsplan.backfill.protocol.frames import scan_frames
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    NoRespondersError,
    NotPermittedError,
)
from jsplan.jetstream.connect_errors import no_tls_error
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.login import check_files, login_fields

DEFAULT_PORT: Final = 4222
#: Bytes per read of the socket, and the base of its system buffer.
RECEIVE_BYTES: Final = 1 << 20
#: Subscription of all requests. Readers use higher numbers.
REQUEST_SID: Final = b"1"
NOT_NATS_MESSAGE: Final = "the process at that address is not a nats-server"


class RawConnection:
    """Open connection to a server. Not thread-safe.

    `info` is the INFO of the server; `inbox` is the prefix of its own reply subjects. Raises
    ConnectError where it cannot connect.
    """

    def __init__(self, target: ConnectionSettings) -> None:
        self.target = target
        self.info: dict[str, Any] = {}
        self.inbox = f"{target.inbox_prefix or '_INBOX'}.{os.urandom(11).hex()}"
        self._request_count = 0
        self._sid = int(REQUEST_SID)
        self.pushed_back = b""
        self._socket = self._open()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)

    # --- opening ---

    def _open(self) -> socket.socket:
        check_files(self.target)
        errors = []
        for url in self.target.servers:
            try:
                return self._connect(url)
            except ConnectError:
                raise
            except (OSError, ValueError) as error:
                errors.append(str(error) or type(error).__name__)
        where = f"connection {self.target.key} ({self.target.shown})"
        raise ConnectError(
            f"{where} cannot be reached: {'; '.join(errors)}",
            hint="Is the server running, and is the URL right?",
            is_offline=True,
        )

    def _connect(self, url: str) -> socket.socket:
        """Connect to one server, up to its PONG, within the timeout of the connection."""
        parsed = urlsplit(url)
        if parsed.scheme not in ("nats", "tls"):
            raise self._build_error(f"{parsed.scheme}:// is not supported for copying messages")
        host = parsed.hostname or "127.0.0.1"
        end = time.monotonic() + self.target.timeout
        plain = socket.create_connection(
            (host, parsed.port or DEFAULT_PORT), timeout=self.target.timeout
        )
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * RECEIVE_BYTES)
            return self._greet(plain, host, parsed, end)
        except BaseException:
            plain.close()
            raise

    def _greet(
        self, plain: socket.socket, host: str, url: SplitResult, end: float
    ) -> socket.socket:
        """Exchange INFO, TLS, CONNECT and PING, in the order of the server.

        Sends no credentials unencrypted where the settings require TLS.
        """
        target = self.target
        stream = self._start_tls(plain, host, end) if target.tls_first else plain
        self._read_info(stream, end)
        if not target.tls_first and (target.must_encrypt or self.info.get("tls_required")):
            if not (self.info.get("tls_required") or self.info.get("tls_available")):
                raise no_tls_error(target)
            stream = self._start_tls(plain, host, end)
        options = login_fields(target, url, str(self.info.get("nonce", ""))) | {
            "verbose": False,
            "pedantic": False,
            "lang": "python-jsplan",
            "version": "1",
            "protocol": 1,
            "headers": True,
            "no_responders": True,
            "name": "jsplan backfill",
        }
        if target.must_encrypt and not isinstance(stream, ssl.SSLSocket):
            raise no_tls_error(target)
        stream.settimeout(_seconds_left(end))
        stream.sendall(
            f"CONNECT {json.dumps(options)}\r\n"
            f"SUB {self.inbox}.r.* {REQUEST_SID.decode()}\r\nPING\r\n".encode()
        )
        self._await_pong(stream, end)
        return stream

    def _start_tls(self, plain: socket.socket, host: str, end: float) -> socket.socket:
        try:
            context = ssl.create_default_context(cafile=self.target.ca)
            if self.target.cert:
                context.load_cert_chain(self.target.cert, self.target.key_file)
            plain.settimeout(_seconds_left(end))
            return context.wrap_socket(plain, server_hostname=host)
        except (ssl.SSLError, OSError) as error:
            raise self._build_error(f"TLS failed: {error}") from None

    def _build_error(self, why: str) -> ConnectError:
        return ConnectError(
            f"connection {self.target.key} ({self.target.shown}): {why}",
            hint="Check the settings of the connection.",
        )

    def _read_info(self, stream: socket.socket, end: float) -> None:
        data = b""
        while b"\r\n" not in data:
            if not (more := _receive(stream, end, data)):
                raise OSError("the server closed the connection at once")
            data += more
        if not data.startswith(b"INFO "):
            raise OSError(NOT_NATS_MESSAGE)
        try:
            info = json.loads(data[5 : data.index(b"\r\n")])
        except (ValueError, RecursionError):
            info = None
        if not isinstance(info, dict) or not isinstance(info.get("max_payload", 0), int):
            raise OSError(NOT_NATS_MESSAGE)
        self.info = info

    def _await_pong(self, stream: socket.socket, end: float) -> None:
        data = b""
        while b"PONG\r\n" not in data:
            _, refused, rest = data.partition(b"-ERR")
            if refused and b"\r\n" in rest:
                text = rest[1:].split(b"\r\n")[0].decode(errors="replace").strip("'")
                if "uthorization" in text or "uthentication" in text:
                    text = "the server refused the credentials"
                raise self._build_error(text)
            if not (more := _receive(stream, end, data)):
                raise self._build_error("the server closed the connection during the greeting")
            data += more
        self.pushed_back = data[data.index(b"PONG\r\n") + 6 :]

    # --- bytes ---

    @property
    def domain(self) -> str | None:
        """JetStream domain of the server, or None."""
        found = self.info.get("domain")
        return str(found) if found else None

    @property
    def max_payload(self) -> int:
        """Maximum bytes of headers and payload of one message."""
        return int(self.info.get("max_payload", 1 << 20))

    def send(self, data: bytes | memoryview) -> None:
        """Send all bytes.

        Raises ApiError when the connection is lost, or accepts nothing within its timeout.
        """
        try:
            self._socket.settimeout(max(self.target.timeout, 30.0))
            self._socket.sendall(data)
        except OSError as error:
            raise self.build_lost_error(error) from None

    def receive(self, into: memoryview, timeout: float) -> int:
        """Read the available bytes, at least one, within `timeout` seconds.

        Raises TimeoutError, and ApiError when the connection is lost.
        """
        if self.pushed_back:
            count = min(len(into), len(self.pushed_back))
            into[:count] = self.pushed_back[:count]
            self.pushed_back = self.pushed_back[count:]
            return count
        try:
            self._socket.settimeout(timeout)
            count = self._socket.recv_into(into)
        except TimeoutError:
            raise
        except OSError as error:
            raise self.build_lost_error(error) from None
        if not count:
            raise self.build_lost_error(OSError("the server closed it"))
        return count

    def has_data(self, patience: int = 0) -> bool:
        """Return True if there are bytes to read, waiting up to `patience` milliseconds."""
        if self.pushed_back or (isinstance(self._socket, ssl.SSLSocket) and self._socket.pending()):
            return True
        return bool(self._poll.poll(patience))

    def build_lost_error(self, error: Exception) -> ApiError:
        """Build the error for a lost connection."""
        return ApiError(
            f"the connection to {self.target.shown} was lost: {error}",
            hint="Check the log of the server.",
        )

    def handle_control_lines(self, lines: list[bytes]) -> None:
        """Answer PING. Raises ApiError for an error of the server."""
        for line in lines:
            if line == b"PING":
                self.send(b"PONG\r\n")
            elif line.startswith(b"-ERR"):
                text = line[5:].decode(errors="replace").strip("'")
                kind = NotPermittedError if "ermissions" in text else ApiError
                raise kind(
                    f"{self.target.shown}: {text}",
                    hint=f"Check the permissions of the user of connection {self.target.key}.",
                )

    def subscribe(self, subject: str) -> int:
        """Subscribe, and return the subscription number.

        Each subject needs its own number: the server ignores a second subject.
        """
        self._sid += 1
        self.send(f"SUB {subject} {self._sid}\r\n".encode())
        return self._sid

    # --- requests ---

    def request(
        self,
        subject: str,
        payload: dict[str, Any] | bytes | None = None,
        timeout: float | None = None,
        headers: bytes = b"",
    ) -> dict[str, Any]:
        """Send a request, and return its JSON answer.

        `timeout` is seconds, `headers` a whole block. Other data that arrives meanwhile is kept
        for the next reader. Returns an answer with an error. Raises NoRespondersError,
        ApiTimeoutError and ApiError.
        """
        body = json.dumps(payload).encode() if isinstance(payload, dict) else payload or b""
        self._request_count += 1
        reply = f"{self.inbox}.r.{self._request_count}".encode()
        size = len(headers) + len(body)
        self.send(
            b"HPUB %s %s %d %d\r\n%s%s\r\n"
            % (subject.encode(), reply, len(headers), size, headers, body)
        )
        answer = self._await_answer(
            subject, reply, time.monotonic() + (timeout or self.target.timeout)
        )
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ApiError(
                f"the answer to {subject} from {self.target.shown} is not JSON: {answer[:80]!r}"
            )
        return found

    def _await_answer(self, subject: str, reply: bytes, end: float) -> bytes:
        buffer, unread, received = bytearray(), bytearray(), bytearray(RECEIVE_BYTES)
        while (remaining := end - time.monotonic()) > 0:
            try:
                buffer += received[: self.receive(memoryview(received), remaining)]
            except TimeoutError:
                break
            scan = scan_frames(buffer, 0, len(buffer))
            self.handle_control_lines(scan.control)
            answer = None
            for line, headers, data, stop in zip(
                *(scan.offsets[part::4] for part in range(4)), strict=True
            ):
                if answer is None and bytes(buffer[line:headers]).split(b" ")[1] == reply:
                    answer = bytes(buffer[headers:data]), bytes(buffer[data:stop])
                else:
                    unread += buffer[line : stop + 2]
            del buffer[: scan.end]
            if answer is not None:
                self.pushed_back = bytes(unread + buffer) + self.pushed_back
                if answer[0].startswith(b"NATS/1.0 503"):
                    raise NoRespondersError(f"{subject} at {self.target.shown} has no responder")
                return answer[1]
        self.pushed_back = bytes(unread + buffer) + self.pushed_back
        raise ApiTimeoutError(f"no answer to {subject} from {self.target.shown}")

    def close(self) -> None:
        """Close the connection; never raises."""
        with contextlib.suppress(OSError):
            self._socket.close()


def _seconds_left(end: float) -> float:
    """Return the seconds until `end`. Raises TimeoutError when there are none left."""
    remaining = end - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("no answer in time")
    return remaining


def _receive(stream: socket.socket, end: float, data: bytes) -> bytes:
    """Receive what follows `data` of a greeting. Raises OSError where that is too long for one."""
    if len(data) > RECEIVE_BYTES:
        raise OSError(NOT_NATS_MESSAGE)
    stream.settimeout(_seconds_left(end))
    return stream.recv(RECEIVE_BYTES)
