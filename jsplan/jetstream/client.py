"""The nats-py client, with the login of jsplan, and with TLS wherever it is required."""

from __future__ import annotations

import asyncio
import contextlib
import re
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar
from urllib.parse import ParseResult

import nats.errors
import orjson
from nats.aio.client import DEFAULT_FLUSH_TIMEOUT, Srv
from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport, WebSocketTransport
from nats.protocol.parser import AWAITING_CONTROL_LINE, Parser

from jsplan.errors import ConnectError
from jsplan.jetstream.connect_errors import NO_TLS
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.login import login_fields

_WEBSOCKET_SCHEMES: Final = ("ws", "wss")
#: Bytes that are parsed at once. nats-py takes 32 KiB, so a chunk of a snapshot had 16 pieces.
_READ_BYTES: Final = 1 << 20

#: A server allows messages of 64 MiB at most, and its own answers are hardly longer.
_MAX_MESSAGE: Final = 128 << 20
#: An INFO or another line of the protocol, and the servers that a cluster announces.
_MAX_LINE: Final = 8 << 20
_MAX_SERVERS: Final = 256
#: The head of a message: subject, number of the subscription, reply, and the bytes of its headers
#: and of both. A message without headers has none of the fourth.
_HEADERS_HEAD: Final = re.compile(
    rb"HMSG ([^\s]+) ([0-9]{1,9})(?: ([^\s]+))? ([0-9]{1,9}) ([0-9]{1,9})\r\n"
)
_HEAD: Final = re.compile(rb"MSG ([^\s]+) ([0-9]{1,9})(?: ([^\s]+))?()? ([0-9]{1,9})\r\n")
_LINE_END: Final = ord("\n")
#: The types of what jsplan and nats-py use of an INFO.
_INFO_TYPES: Final = {
    "max_payload": int, "client_id": int, "nonce": str, "version": str, "connect_urls": list,
}  # fmt: skip

T = TypeVar("T")


class Answers(ABC):
    """Answers to requests, with unparsed headers. `arrived` is set with each."""

    def __init__(self) -> None:
        self.arrived = asyncio.Event()
        self.has_ended = False

    @abstractmethod
    def add(self, subject: bytes, block: bytes, payload: bytes) -> None:
        """Add subject, header block and payload of an answer. Never raises."""


class ManyAnswers(Answers):
    """The answers to one request, until one with a status.

    They also end after `most`, since a foreign responder may never send a status.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.messages: list[tuple[bytes, bytes]] = []
        self._most = most

    def add(self, subject: bytes, block: bytes, payload: bytes) -> None:  # noqa: ARG002
        """Add an answer."""
        self.messages.append((block, payload))
        self.has_ended = block.startswith(b"NATS/1.0 ") or len(self.messages) > self._most
        self.arrived.set()


class NumberedAnswers(Answers, Generic[T]):
    """One answer to each of several requests; the last token of its subject is the number.

    Each is parsed as it arrives, so that no large ones wait, and put into `found`. `parse` gets the
    number, header block and payload; its first error ends all and is kept. `largest` is the bytes
    of the largest payload.
    """

    def __init__(
        self, count: int, parse: Callable[[int, bytes, bytes], T], found: dict[int, T]
    ) -> None:
        super().__init__()
        self.found = found
        self.error: Exception | None = None
        self.largest = 0
        self._count, self._parse = count, parse

    def add(self, subject: bytes, block: bytes, payload: bytes) -> None:
        """Add an answer, once."""
        number = int(token) if (token := subject.rpartition(b".")[2]).isdigit() else -1
        if not 0 <= number < self._count or number in self.found:
            return
        self.largest = max(self.largest, len(payload))
        try:
            self.found[number] = self._parse(number, block, payload)
        except Exception as error:  # noqa: BLE001 - it is raised where the answers are awaited
            self.error = error
        self.has_ended = self.error is not None or len(self.found) == self._count
        self.arrived.set()


class _SingleAnswers(Answers):
    """One answer to each request of `Client.ask`, by the subject of the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[bytes, asyncio.Future[tuple[bytes, bytes]]] = {}

    def add(self, subject: bytes, block: bytes, payload: bytes) -> None:
        """Give an answer to the request that waits for it, once."""
        answer = self.waiting.pop(subject, None)
        if answer is not None and not answer.done():
            answer.set_result((block, payload))


class _Parser(Parser):
    """nats-py's parser, which leaves whole messages to this one: it takes three times as long.

    It has bounds for a server that sends messages without an end.
    """

    def reset(self) -> None:
        """Forget what has arrived. nats-py calls this for each connection."""
        super().reset()
        self._waiting: list[bytes] = []
        #: Bytes that wait, and how many there must be before the next message is complete.
        self._size = self._wanted = 0

    async def parse(self, data: bytes = b"") -> None:
        """Parse what has arrived, and keep an incomplete message for the next call.

        Raises nats.errors.ProtocolError beyond the bounds.
        """
        self._waiting.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return
        data = b"".join(self._waiting)
        if (found := await self._parse_messages(data)) is None:
            return
        place, wanted = found
        self._waiting, self._size, self._wanted = [data[place:]], len(data) - place, wanted
        if max(self._wanted, self.needed) > _MAX_MESSAGE or (
            not self._wanted and self._size > _MAX_LINE
        ):
            raise nats.errors.ProtocolError("nats: a message or a line without an end")

    async def _parse_messages(self, data: bytes) -> tuple[int, int] | None:
        """Return where the first incomplete message or line begins, and its bytes (0: not known).

        None: the connection ended meanwhile, and the next one may have begun.
        A line that is not the head of a message is left to nats-py; one that only looks different
        (more spaces) with all that follows until its message ends.
        """
        place, total, client = 0, len(data), self.nc
        while place < total:
            head = None
            if self.state == AWAITING_CONTROL_LINE:
                head = _HEADERS_HEAD.match(data, place) or _HEAD.match(data, place)
            if head is None:
                end = data.find(b"\n", place) + 1 or total
                if self.state == AWAITING_CONTROL_LINE and data[end - 1] != _LINE_END:
                    return place, 0
                await super().parse(data[place:end])
                if not self._waiting:  # reset: an error of the server ended the connection
                    return None
                place = end
                continue
            subject, sid, reply, block, size = head.groups()
            begin = head.end()
            end = begin + int(size)
            if end + 2 > total:
                return place, end + 2 - place
            middle, place = begin + int(block or 0), end + 2
            if (answers := client.answers_of.get(int(sid))) is not None:
                answers.add(subject, data[begin:middle], data[middle:end])
            else:
                headers = data[begin:middle] if middle > begin else None
                await client._process_msg(  # noqa: SLF001 - as nats-py does
                    int(sid), subject, reply or b"", data[middle:end], headers
                )
        return place, 0


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, and the connection must be encrypted."""

    def __str__(self) -> str:
        return NO_TLS


class _WrongInfoError(nats.errors.ProtocolError):
    """A field of an INFO has a type that no server gives it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __str__(self) -> str:
        return f"what answers there is no nats-server: {self._name} of its INFO is wrong"


class _TcpTransport(TcpTransport):
    """nats-py's transport, with the protocol setup that it omits after a TLS handshake."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # it has no types

    async def connect_tls(
        self,
        uri: str | ParseResult,
        ssl_context: ssl.SSLContext,
        buffer_size: int,
        connect_timeout: int,
    ) -> None:
        """Encrypt the connection. Abort it on failure: nats-py would wait for its end for ever."""
        try:
            await super().connect_tls(uri, ssl_context, buffer_size, connect_timeout)
        except BaseException:
            self.abort()
            raise
        # Without this asyncio logs an error at the end, and there is no back pressure on reads.
        assert self._io_writer is not None
        transport = self._io_writer.transport
        transport.get_protocol().connection_made(transport)

    async def read(self, buffer_size: int) -> bytes:  # noqa: ARG002
        """Return everything that has arrived."""
        assert self._io_reader is not None
        return await self._io_reader.read(_READ_BYTES)

    def abort(self) -> None:
        """Close the connection without a handshake."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
        self._io_reader = self._io_writer = self._bare_io_reader = self._bare_io_writer = None


class Client(NatsClient):
    """nats-py's client. If its settings require TLS, no credential is sent unencrypted.

    That holds for the first connection, for each later one, and for servers that the cluster
    announces. `answers_of` has the subscriptions whose messages are kept with unparsed headers, by
    their number; nats-py does not keep those.
    """

    #: The begin of the subjects of all answers to `ask`; empty before the first.
    _answers_prefix = b""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__()
        self._settings = settings
        self._must_encrypt = settings.must_encrypt
        self.answers_of: dict[int, Answers] = {}
        self._ps = _Parser(self)
        self._answers = _SingleAnswers()
        self._asked = 0

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> tuple[bytes, bytes]:
        """Send a request; return header block (unparsed, may be empty) and payload of its answer.

        nats-py's `request` does the same at twice the CPU time: a plan sends tens of thousands.
        """
        if not self._answers_prefix:
            self._answers_prefix = f"{self.new_inbox()}.".encode()
            self.answers_of[self._sid + 1] = self._answers
            # It is written before it waits, so before the requests of other tasks.
            await self.subscribe(f"{self._answers_prefix.decode()}*")
        self._asked += 1
        reply = b"%s%d" % (self._answers_prefix, self._asked)
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self._answers.waiting[reply] = answer
        try:
            await self.publish(subject, payload, reply=reply.decode(), headers=headers)
            return await answer
        finally:
            self._answers.waiting.pop(reply, None)

    async def flush(self, timeout: int = DEFAULT_FLUSH_TIMEOUT) -> None:
        """Wait until the server has processed all that was sent before. `timeout` is seconds.

        nats-py sends its PING ahead of what waits to be sent.
        """
        await self._flush_pending(force_flush=True)
        await super().flush(timeout)

    async def _connect_to_server(self, s: Srv) -> None:
        if s.uri.scheme in _WEBSOCKET_SCHEMES:
            await super()._connect_to_server(s)
            return
        s.last_attempt = time.monotonic()
        if not isinstance(self._transport, _TcpTransport):
            self._transport = _TcpTransport()
        # nats-py leaves a connection open whose greeting failed.
        self._transport.abort()
        await self._transport.connect(
            s.uri, buffer_size=_READ_BYTES // 2, connect_timeout=self.options["connect_timeout"]
        )

    async def close_within(self, timeout: float) -> None:
        """Close the connection, after `timeout` seconds without a handshake; never raises."""
        with contextlib.suppress(Exception):
            async with asyncio.timeout(timeout):
                await self.close()
        if isinstance(self._transport, _TcpTransport):
            self._transport.abort()

    async def _process_connect_init(self) -> None:
        """Limit the time of the whole greeting, and map errors of a foreign server to one type."""
        try:
            async with asyncio.timeout(self.options["connect_timeout"]):
                await super()._process_connect_init()
        except (nats.errors.Error, OSError):
            raise
        except Exception as error:
            raise nats.errors.Error(f"what answers there is no nats-server: {error}") from error

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        self._check_info(info)
        if initial_connection and self._must_encrypt and not self._is_encrypted:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NoTlsError
            # nats-py does not encrypt where TLS is offered and not required.
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

    def _check_info(self, info: dict[str, Any]) -> None:
        """Refuse an INFO with values of other types, and drop announced servers beyond a limit.

        nats-py compares each announced server with all that it knows.
        """
        for name, kind in _INFO_TYPES.items():
            if name in info and (type(info[name]) is not kind):
                raise _WrongInfoError(name)
        urls = [url for url in info.get("connect_urls", ()) if isinstance(url, str)]
        if urls:
            info["connect_urls"] = urls[: max(_MAX_SERVERS - len(self._server_pool), 0)]

    def _connect_command(self) -> bytes:
        """Refuse to send credentials, which only this message has, on an unencrypted connection."""
        if self._must_encrypt and not self._is_encrypted:
            raise NoTlsError
        server = self._current_server
        assert server is not None, "nats-py connects before it says CONNECT"
        try:
            login = login_fields(self._settings, server.uri, self._server_info.get("nonce") or "")
        except ConnectError as error:  # a file that was readable when the connection was opened
            raise nats.errors.Error(str(error)) from None
        verb, _, options = super()._connect_command().partition(b" ")
        return b"%s %s\r\n" % (verb, orjson.dumps(orjson.loads(options) | login))

    @property
    def _is_encrypted(self) -> bool:
        transport = self._transport
        if isinstance(transport, WebSocketTransport):
            return bool(transport._using_tls)  # noqa: SLF001 - the only place that knows
        writer = getattr(transport, "_io_writer", None)
        return bool(writer and writer.get_extra_info("ssl_object"))

    async def _process_msg(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes
    ) -> None:
        answers = self.answers_of.get(sid)
        if answers is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            answers.add(subject, headers or b"", data)
