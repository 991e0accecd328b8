"""One connection to one account: connecting, request and reply, and every foreign exception mapped once.

nats-py does authentication, TLS and reconnecting; requests and answers stay bytes. What the requests mean is
left to `api`.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import nats
import nats.errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from jsplan.errors import ApiError, ApiTimeoutError, ConnectError, NoRespondersError, NotPermittedError
from jsplan.jetstream.contexts import Target
from jsplan.jetstream.seal import Seal
from jsplan.jetstream.trouble import check_files, connect_error, credentials, deaf, forbidden, words

#: Requests under way at once on one connection: beyond this a server on the same machine gets no faster.
IN_FLIGHT = 64
#: Seconds after which a request that is not answered gives its place to another.
PATIENCE = 0.5


@dataclass(frozen=True, slots=True)
class Arrived:
    """One message of an `Inbox`: where it wants its answer (empty: nowhere), its status (`204`, `408 No Flow Response`) and payload."""

    reply: str
    status: str
    data: bytes


class Inbox:
    """A subject of our own and what arrives there, in order; made by `Link.inbox`."""

    def __init__(self, link: Link, subscription: Subscription) -> None:
        self.subject = str(subscription.subject)
        self._link = link
        self._subscription = subscription

    async def next(self, timeout: float, waiting_for: str) -> Arrived:
        """The next message; raises ApiTimeoutError after `timeout` seconds, and ApiError when the connection is lost."""
        shown = self._link.target.shown
        try:
            message = await self._subscription.next_msg(timeout)
        except (TimeoutError, nats.errors.TimeoutError):
            raise ApiTimeoutError(f"{waiting_for}: nothing came from {shown} for {timeout:g} s") from None
        except (nats.errors.Error, OSError) as error:
            raise ApiError(f"the connection to {shown} was lost during {waiting_for}: {words(error)}") from None
        headers = message.headers or {}
        status = f"{headers.get('Status', '')} {headers.get('Description', '')}".strip()
        return Arrived(message.reply, status, bytes(message.data))


class _Client(Client):
    """nats-py's client that can hand out messages as they came: it parses headers and forgets what they looked like."""

    def __init__(self) -> None:
        super().__init__()
        self.untouched: dict[int, asyncio.Queue[tuple[bytes, bytes]]] = {}

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        taken = self.untouched.get(sid)
        if taken is None:
            await super()._process_msg(sid, subject, reply, data, headers)
        else:
            taken.put_nowait((bytes(headers or b""), bytes(data)))


class Link:
    """An open connection. Errors that the server sends out of band are kept, to explain a later timeout.

    With a `seal` it sends nothing but what that lets pass.
    """

    def __init__(self, target: Target, seal: Seal | None = None) -> None:
        self.target = target
        self.seal = seal
        self._client = _Client()
        self._denied: list[str] = []
        self._waiting: dict[str, list[asyncio.Timeout]] = {}
        self._slots = asyncio.Semaphore(IN_FLIGHT)

    @property
    def server(self) -> dict[str, Any]:
        """What the connected server said about itself: server_name, cluster, domain, version, api_lvl."""
        return dict(self._client._server_info)  # noqa: SLF001 - nats-py offers no public view of all of it

    async def open(self) -> None:
        """Connect. Raises ConnectError that names the URL without secrets and says what to look at."""
        target = self.target
        check_files(target)
        try:
            await asyncio.wait_for(self._client.connect(**self._options()), target.timeout + 1)
            self._check_encrypted()
        except BaseException as error:
            await self._abandon()
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | ConnectError):
                raise
            raise connect_error(target, error, self._denied) from None

    async def reopen(self) -> None:
        """Connect anew after the connection was lost for good (`is_closed`). Raises ConnectError."""
        await self._abandon()
        self._client = _Client()
        await self.open()

    def _check_encrypted(self) -> None:
        """nats-py takes `tls://` to a server without TLS for a plain connection; nobody who writes that wants it."""
        wanted = self.target.url.startswith("tls://") or self.target.ca or self.target.tls_first
        writer = getattr(self._client._transport, "_io_writer", None)  # noqa: SLF001 - the only place that knows
        if wanted and not (writer and writer.get_extra_info("ssl_object")):
            raise ConnectError(
                f"connection {self.target.key} ({self.target.shown}): the server does not offer TLS on this port",
                hint="Enable tls in the server's configuration; or write nats:// and no `tls`, if this may go in the clear.",
            )

    async def _abandon(self) -> None:
        """A client that failed to connect may still hold a socket and tasks."""
        with contextlib.suppress(Exception):  # the first error is the one to report
            await self._client.close()

    def _options(self) -> dict[str, Any]:
        target = self.target
        options: dict[str, Any] = {
            "servers": [url.strip() for url in target.url.split(",")], "name": "jsplan", "connect_timeout": max(1, int(target.timeout)),
            "allow_reconnect": True, "max_reconnect_attempts": 1, "reconnect_time_wait": 0, "error_cb": self._on_error,
            "user": target.user, "password": target.password, "token": target.token,
            "user_credentials": credentials(target.creds), "nkeys_seed": target.nkey, "tls_handshake_first": target.tls_first,
        }  # fmt: skip
        if target.inbox_prefix:
            options["inbox_prefix"] = target.inbox_prefix
        if target.ca or target.cert or target.tls_first or target.url.startswith("tls://"):
            options["tls"] = self._tls()
        return options

    def _tls(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.target.ca)
        if self.target.cert:
            context.load_cert_chain(self.target.cert, self.target.key_file)
        return context

    async def _on_error(self, error: Exception) -> None:
        """Errors that the server sends out of band; one about a request that is waited for ends the wait at once."""
        self._denied.append(str(error))
        del self._denied[:-20]
        for subject, scopes in self._waiting.items():
            if forbidden(str(error), subject) or deaf(str(error)):
                for scope in scopes:
                    scope.reschedule(asyncio.get_running_loop().time())

    @property
    def is_closed(self) -> bool:
        """Whether the connection was lost for good: a new link is needed then."""
        return bool(self._client.is_closed)

    @contextlib.asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        """A place among the requests under way. Domains that are silent must not hold up those that answer: see `PATIENCE`."""
        await self._slots.acquire()
        left = asyncio.Event()

        def leave() -> None:
            if not left.is_set():
                left.set()
                self._slots.release()

        timer = asyncio.get_running_loop().call_later(PATIENCE, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()

    async def request(self, subject: str, payload: bytes, timeout: float | None = None, *, headers: dict[str, str] | None = None) -> bytes:
        """One request, of which `IN_FLIGHT` are waited for at once, those in vain not counted; `timeout` is seconds.

        Raises NoRespondersError at once where nobody listens, NotPermittedError as soon as the server says so,
        ApiTimeoutError where somebody might answer and does not, and ApiError when the connection is lost.
        """
        self._check(subject)
        timeout = timeout or self.target.timeout
        async with self._slot():
            try:
                return await self._answer(subject, payload, timeout, headers)
            except nats.errors.NoRespondersError:
                raise NoRespondersError(f"nobody answers {subject} at {self.target.shown}") from None
            except (TimeoutError, nats.errors.TimeoutError):
                raise self._timed_out(subject, timeout) from None
            except (nats.errors.Error, OSError) as error:
                raise ApiError(
                    f"the connection to {self.target.shown} was lost during {subject}: {words(error)}",
                    hint="Look at the server's log; then run the command again.",
                ) from None

    def _check(self, subject: str) -> None:
        if self.seal is not None:
            self.seal.check(subject)

    async def _answer(self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None) -> bytes:
        async with asyncio.timeout(None) as scope:
            scopes = self._waiting.setdefault(subject, [])
            scopes.append(scope)
            try:
                return bytes((await self._client.request(subject, payload, timeout=timeout, headers=headers)).data)
            finally:
                scopes.remove(scope)
                if not scopes:
                    del self._waiting[subject]

    async def request_many(self, subject: str, payload: bytes, timeout: float | None = None) -> list[tuple[bytes, bytes]]:
        """One request with many answers: header block and payload of each, the last one being that with a status.

        The block is as it came, from `NATS/1.0` to the empty line. `timeout` is seconds between two answers.
        Raises what `request` raises.
        """
        self._check(subject)
        timeout = timeout or self.target.timeout
        async with self._slot():
            try:
                return await self._collect(subject, payload, timeout)
            except (TimeoutError, nats.errors.TimeoutError):
                raise self._timed_out(subject, timeout) from None
            except (nats.errors.Error, OSError) as error:
                raise ApiError(f"the connection to {self.target.shown} was lost during {subject}: {words(error)}") from None

    async def _collect(self, subject: str, payload: bytes, timeout: float) -> list[tuple[bytes, bytes]]:
        inbox = self._client.new_inbox()
        subscription = await self._client.subscribe(inbox)
        queue = self._client.untouched[subscription._id] = asyncio.Queue()  # noqa: SLF001 - there is no public name for it
        try:
            await self._client.publish(subject, payload, reply=inbox)
            answers = [await asyncio.wait_for(queue.get(), timeout)]
            while not answers[-1][0].startswith(b"NATS/1.0 "):
                answers.append(queue.get_nowait() if not queue.empty() else await asyncio.wait_for(queue.get(), timeout))
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):  # a connection that is gone has no subscriptions
                await subscription.unsubscribe()
            del self._client.untouched[subscription._id]  # noqa: SLF001
        if answers[-1][0].startswith(b"NATS/1.0 503"):
            raise NoRespondersError(f"nobody answers {subject} at {self.target.shown}")
        return answers

    @contextlib.asynccontextmanager
    async def inbox(self, subject: str | None = None) -> AsyncIterator[Inbox]:
        """A subject to receive on, as long as the context lasts: the given one, or a new one of our own.

        Raises ApiError when the connection is lost. A subject that the user may not receive stays silent.
        """
        try:
            subscription = await self._client.subscribe(subject or self._client.new_inbox())
        except (nats.errors.Error, OSError) as error:
            raise ApiError(f"the connection to {self.target.shown} was lost: {words(error)}") from None
        try:
            yield Inbox(self, subscription)
        finally:
            with contextlib.suppress(nats.errors.Error, OSError):  # a connection that is gone has no subscriptions
                await subscription.unsubscribe()

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send one message; answers come to `reply`. Raises ApiError when the connection is lost."""
        self._check(subject)
        try:
            await self._client.publish(subject, payload, reply=reply)
        except (nats.errors.Error, OSError) as error:
            raise ApiError(f"the connection to {self.target.shown} was lost: {words(error)}") from None

    async def flush(self) -> None:
        """Wait until the server has taken what was sent, and what it had for us is here. Raises ApiError."""
        try:
            await self._client.flush(max(1, int(self.target.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise ApiError(f"the connection to {self.target.shown} was lost: {words(error)}") from None

    def _timed_out(self, subject: str, timeout: float) -> ApiError:
        user = f"the user of connection {self.target.key}"
        if named := next(filter(None, (forbidden(text, subject) for text in reversed(self._denied))), None):
            said = "it" if named == subject else f"{named} (as the server names it)"
            return NotPermittedError(
                f"{self.target.shown} does not permit this user to publish to {subject}",
                hint=f"Give {user} permission to publish to {said}, or use another user.",
            )
        if any(deaf(text) for text in self._denied):
            inbox = f"{self.target.inbox_prefix or '_INBOX'}.>"
            return NotPermittedError(
                f"{self.target.shown}: this user may not receive answers to {subject}",
                hint=f"Give {user} permission to subscribe to {inbox}, or name what it may subscribe to with `inbox_prefix`.",
            )
        return ApiTimeoutError(f"no answer to {subject} from {self.target.shown} within {timeout:g} s")

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._abandon()
