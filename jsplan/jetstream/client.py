"""The nats-py client, with the login of jsplan, and with TLS wherever it is required."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import time
from typing import Any, Final
from urllib.parse import ParseResult

import nats.errors
import orjson
from nats.aio.client import DEFAULT_BUFFER_SIZE, Srv
from nats.aio.client import Client as NatsClient
from nats.aio.transport import TcpTransport, WebSocketTransport

from jsplan.errors import ConnectError
from jsplan.jetstream.connect_errors import NO_TLS
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.login import login_fields

_WEBSOCKET_SCHEMES: Final = ("ws", "wss")


class NoTlsError(nats.errors.Error):
    """The server offers no TLS, and the connection must be encrypted."""

    def __str__(self) -> str:
        return NO_TLS


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

    def abort(self) -> None:
        """Close the connection without a handshake."""
        for writer in (self._io_writer, self._bare_io_writer):
            if writer is not None:
                writer.transport.abort()
        self._io_reader = self._io_writer = self._bare_io_reader = self._bare_io_writer = None


class Client(NatsClient):
    """nats-py's client. If its settings require TLS, no credential is sent unencrypted.

    That holds for the first connection, for each later one, and for servers that the cluster
    announces. `raw_queues` receive the messages of a subscription with unparsed headers, which
    nats-py does not keep.
    """

    #: The begin of the subjects of all answers to `ask`; empty before the first.
    _answers_prefix = b""

    def __init__(self, settings: ConnectionSettings) -> None:
        super().__init__()
        self._settings = settings
        self._must_encrypt = settings.must_encrypt
        self.raw_queues: dict[int, asyncio.Queue[tuple[bytes, bytes]]] = {}
        self._answers: dict[bytes, asyncio.Future[tuple[bytes, bytes]]] = {}
        self._asked = 0

    async def ask(
        self, subject: str, payload: bytes, headers: dict[str, str] | None
    ) -> tuple[bytes, bytes]:
        """Send a request; return header block (unparsed, may be empty) and payload of its answer.

        nats-py's `request` does the same at twice the CPU time: a plan sends tens of thousands.
        """
        if not self._answers_prefix:
            self._answers_prefix = f"{self.new_inbox()}.".encode()
            # It is written before it waits, so before the requests of other tasks.
            await self.subscribe(f"{self._answers_prefix.decode()}*")
        self._asked += 1
        reply = b"%s%d" % (self._answers_prefix, self._asked)
        answer: asyncio.Future[tuple[bytes, bytes]] = asyncio.get_running_loop().create_future()
        self._answers[reply] = answer
        try:
            await self.publish(subject, payload, reply=reply.decode(), headers=headers)
            return await answer
        finally:
            self._answers.pop(reply, None)

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
            s.uri, buffer_size=DEFAULT_BUFFER_SIZE, connect_timeout=self.options["connect_timeout"]
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
        if initial_connection and self._must_encrypt and not self._is_encrypted:
            if not (info.get("tls_required") or info.get("tls_available")):
                raise NoTlsError
            # nats-py does not encrypt where TLS is offered and not required.
            info["tls_required"] = True
        await super()._process_info(info, initial_connection)

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
        if self._answers_prefix and subject.startswith(self._answers_prefix):
            answer = self._answers.pop(bytes(subject), None)
            if answer is not None and not answer.done():
                answer.set_result((bytes(headers or b""), bytes(data)))
            return
        queue = self.raw_queues.get(sid)
        if queue is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            queue.put_nowait((bytes(headers or b""), bytes(data)))
