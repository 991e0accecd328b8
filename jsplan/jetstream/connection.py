"""One connection to one account: connecting, request and reply, and mapping of errors.

nats-py does TLS and reconnecting; `login` does the authentication. Requests and answers stay bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Any, Final, Literal, TypeVar

import nats
import nats.errors
from msgspec import Struct
from nats.aio.subscription import Subscription

from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    ConnectionLostError,
    NoRespondersError,
    NotPermittedError,
)
from jsplan.jetstream.client import Answers, Client, ManyAnswers, NumberedAnswers
from jsplan.jetstream.connect_errors import (
    NO_TLS,
    build_connect_error,
    denied_subject,
    denies_inbox,
    describe_error,
)
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.login import check_files
from jsplan.jetstream.read_only import ReadOnlyGuard
from jsplan.jetstream.restore_lock import RestoreLock

T = TypeVar("T")

#: Fields of a server's greeting that jsplan reads.
_SERVER_INFO_TYPES: Final[dict[str, type]] = {
    "server_id": str,
    "server_name": str,
    "cluster": str,
    "domain": str,
    "version": str,
    "max_payload": int,
    "api_lvl": int,
}
#: The header block of the server's answer to a request that no one subscribes to.
NO_RESPONDERS: Final = b"NATS/1.0 503"
#: Concurrent requests on one connection: a server on the same machine gets no faster beyond this.
MAX_IN_FLIGHT = 64
#: The same for reads that are sent together, since a link delays each; fewer where the answers
#: are large, since a server drops a connection with 64 MiB that wait.
MAX_UNANSWERED, MIN_UNANSWERED, UNANSWERED_BYTES = 256, 8, 16 << 20
#: Errors of the server that a connection remembers: more than it can deny of what was sent before
#: the first of them is looked at, requests or acknowledged chunks of a snapshot.
MAX_ERRORS = 4 * MAX_UNANSWERED
#: Messages of one batch at most: more than any request asks for.
MAX_ANSWERS = 10_000
#: Seconds after which an unanswered request no longer occupies a slot.
SLOT_TIMEOUT = 0.5
#: Seconds for an orderly close: TLS would wait half a minute for a silent server.
CLOSE_TIMEOUT = 2.0
#: Seconds for the server to take the data that is buffered, once nats-py's buffer is full.
FLUSH_TIMEOUT = 60.0


def valid_server_info(info: dict[str, Any]) -> dict[str, Any]:
    """Drop fields of a server's greeting that have a wrong type; replace lone surrogates by `?`."""
    found = {
        name: value
        for name, value in info.items()
        if isinstance(value, _SERVER_INFO_TYPES.get(name, object))
    }
    return {
        name: value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
        for name, value in found.items()
    }


class InboxMessage(Struct, frozen=True):
    """One message of an `Inbox`.

    `reply` is empty if no answer is wanted. `status` is such as `204` or `408 No Flow Response`.
    """

    reply: str
    status: str
    data: bytes


class Inbox:
    """A subscription to a reply subject, in order; made by `NatsConnection.open_inbox`."""

    #: The first subject that `publish` sent to.
    _first_subject = ""

    def __init__(self, connection: NatsConnection, subscription: Subscription) -> None:
        self.subject = str(subscription.subject)
        self._connection = connection
        self._subscription = subscription

    async def publish(self, subject: str, payload: bytes, *, wants_answer: bool = True) -> None:
        """Send one message, whose answers come to this inbox. Raises ConnectionLostError.

        If the server denies the first subject, `next` ends at once with NotPermittedError.
        """
        self._first_subject = self._first_subject or subject
        reply = self.subject if wants_answer else ""
        await self._connection.publish(subject, payload, reply)

    async def next(self, timeout: float, waiting_for: str) -> InboxMessage:
        """Return the next message.

        Raises ApiTimeoutError (`timeout` is s), NotPermittedError and ConnectionLostError.
        """
        shown, sent = self._connection.settings.shown, self._first_subject
        try:
            # A denial may have arrived before this wait.
            wait = 0 if sent and self._connection.denied_error(sent) else timeout
            async with self._connection.wait_for_answers([sent] if sent else [], wait):
                message = await self._subscription.next_msg(None)
        except (TimeoutError, nats.errors.TimeoutError):
            if sent and (denied := self._connection.denied_error(sent)) is not None:
                raise denied from None
            raise ApiTimeoutError(
                f"{waiting_for}: nothing came from {shown} for {timeout:g} s"
            ) from None
        except (nats.errors.Error, OSError) as error:
            raise self._connection.lost_error(error, waiting_for) from None
        headers = message.headers or {}
        status = f"{headers.get('Status', '')} {headers.get('Description', '')}".strip()
        return InboxMessage(message.reply, status, bytes(message.data))


class _Slot:
    """One of the concurrent requests. A silent domain releases its slot after `SLOT_TIMEOUT`."""

    __slots__ = ("_slots", "_timer")

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots: asyncio.Semaphore | None = slots
        self._timer = asyncio.get_running_loop().call_later(SLOT_TIMEOUT, self._release)

    def _release(self) -> None:
        if self._slots is not None:
            self._slots.release()
            self._slots = None

    def __enter__(self) -> None:
        """Do nothing: the slot was taken before."""

    def __exit__(self, *_: object) -> None:
        """Release the slot, once."""
        self._timer.cancel()
        self._release()


class NatsConnection:
    """An open connection. Stores asynchronous errors of the server to explain a later timeout.

    With a `guard` it sends only what the guard allows.
    """

    def __init__(self, settings: ConnectionSettings, guard: ReadOnlyGuard | None = None) -> None:
        self.settings = settings
        self.guard = guard
        self._client = Client(self.settings)
        self._server_errors: list[str] = []
        self._pending_requests: dict[str, list[asyncio.Timeout]] = {}
        self._slots = asyncio.Semaphore(MAX_IN_FLIGHT)
        self._batches = 0
        self._restore_locks: dict[str, RestoreLock] = {}

    def restore_lock(self, api_prefix: str) -> RestoreLock:
        """Return the lock of the streams behind an API prefix."""
        return self._restore_locks.setdefault(api_prefix, RestoreLock())

    @property
    def server(self) -> dict[str, Any]:
        """Server info: server_name, cluster, domain, version, api_lvl; wrong types are dropped."""
        return valid_server_info(self._client._server_info)  # noqa: SLF001 - not public in nats-py

    async def open(self) -> None:
        """Connect. Raises ConnectError with the URL without secrets, and a hint."""
        target = self.settings
        check_files(target)
        try:
            await asyncio.wait_for(self._client.connect(**self._options()), target.timeout + 1)
        except BaseException as error:
            await self._discard_client()
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | ConnectError):
                raise
            raise build_connect_error(target, error, self._server_errors) from None

    async def reopen(self) -> None:
        """Connect again after the connection was lost (`is_closed`). Raises ConnectError."""
        await self._discard_client()
        self._client = Client(self.settings)
        await self.open()

    async def _discard_client(self) -> None:
        """Close the client. One that failed to connect may still have a socket and tasks."""
        await self._client.close_within(CLOSE_TIMEOUT)

    def _options(self) -> dict[str, Any]:
        target = self.settings
        options: dict[str, Any] = {
            "servers": list(target.servers),
            "name": "jsplan",
            "connect_timeout": target.timeout,
            "flush_timeout": FLUSH_TIMEOUT,
            "allow_reconnect": True,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "error_cb": self._on_error,
            "tls_handshake_first": target.tls_first,
        }
        if target.inbox_prefix:
            options["inbox_prefix"] = target.inbox_prefix
        if target.must_encrypt:
            options["tls"] = self._ssl_context()
        return options

    def _ssl_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self.settings.ca)
        if self.settings.cert:
            context.load_cert_chain(self.settings.cert, self.settings.key_file)
        return context

    async def _on_error(self, error: Exception) -> None:
        """Store an asynchronous error; end the wait of a request that it denies."""
        self._server_errors.append(str(error))
        del self._server_errors[:-MAX_ERRORS]
        for subject, scopes in self._pending_requests.items():
            if denied_subject(str(error), subject) or denies_inbox(str(error)):
                for scope in scopes:
                    scope.reschedule(asyncio.get_running_loop().time())

    @property
    def is_closed(self) -> bool:
        """Return True if the connection was lost for good and a new one is needed."""
        return bool(self._client.is_closed)

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout: float | None = None,
        *,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Send one request and return its answer; `timeout` is seconds.

        At most `MAX_IN_FLIGHT` requests wait at once, apart from those beyond `SLOT_TIMEOUT`.
        Raises NoRespondersError at once without a subscriber, NotPermittedError when the server
        denies it, ApiTimeoutError if a subscriber does not answer, and ConnectionLostError.
        """
        self._check_guard(subject)
        timeout = timeout or self.settings.timeout
        await self._slots.acquire()
        with _Slot(self._slots):
            try:
                return await self._request_once(subject, payload, timeout, headers)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                raise self._request_error(error, subject, timeout) from None

    def _check_guard(self, subject: str) -> None:
        if self.guard is not None:
            self.guard.check(subject)

    async def _request_once(
        self, subject: str, payload: bytes, timeout: float, headers: dict[str, str] | None
    ) -> bytes:
        async with asyncio.timeout(timeout) as scope:
            self._expect_answers([subject], scope)
            try:
                block, data = await self._client.ask(subject, payload, headers)
            finally:
                self._forget_answers([subject], scope)
        if block.startswith(NO_RESPONDERS):
            raise nats.errors.NoRespondersError
        return data

    @contextlib.asynccontextmanager
    async def wait_for_answers(
        self, subjects: Collection[str], timeout: float
    ) -> AsyncIterator[asyncio.Timeout]:
        """Limit the time of a wait, which ends at once if the server denies one of the subjects."""
        async with asyncio.timeout(timeout) as scope:
            self._expect_answers(subjects, scope)
            try:
                yield scope
            finally:
                self._forget_answers(subjects, scope)

    def _expect_answers(self, subjects: Collection[str], scope: asyncio.Timeout) -> None:
        """End the scope at once if the server denies one of the subjects."""
        for subject in subjects:
            self._pending_requests.setdefault(subject, []).append(scope)

    def _forget_answers(self, subjects: Collection[str], scope: asyncio.Timeout) -> None:
        for subject in subjects:
            scopes = self._pending_requests[subject]
            scopes.remove(scope)
            if not scopes:
                del self._pending_requests[subject]

    async def request_many(
        self, subject: str, payload: bytes, timeout: float | None = None
    ) -> list[tuple[bytes, bytes]]:
        """Send one request and return header block and payload of each answer.

        The last answer is the one with a status. The block is unparsed, from `NATS/1.0` to the
        empty line. `timeout` is seconds between two answers. Raises what `request` raises.
        """
        self._check_guard(subject)
        timeout = timeout or self.settings.timeout
        await self._slots.acquire()
        with _Slot(self._slots):
            try:
                return await self._collect_answers(subject, payload, timeout)
            except (nats.errors.Error, TimeoutError, OSError) as error:
                raise self._request_error(error, subject, timeout) from None

    async def _collect_answers(
        self, subject: str, payload: bytes, timeout: float
    ) -> list[tuple[bytes, bytes]]:
        found = ManyAnswers(MAX_ANSWERS)
        async with self._receive_answers(found, [subject], timeout) as (inbox, wait_for_more):
            await self._client.publish(subject, payload, reply=f"{inbox}.0")
            while not found.has_ended:
                await wait_for_more()
        if len(found.messages) > MAX_ANSWERS:
            raise ApiError(
                f"the answer to {subject} at {self.settings.shown} has over {MAX_ANSWERS:,} parts",
                hint="Check that a nats-server answers there.",
            )
        if found.messages[-1][0].startswith(NO_RESPONDERS):
            raise NoRespondersError(f"no responders on {subject} at {self.settings.shown}")
        return found.messages

    async def request_each(
        self,
        requests: Sequence[tuple[str, bytes]],
        parse: Callable[[int, bytes], T],
        timeout: float | None = None,
        *,
        unheard: Callable[[int], T] | None = None,
    ) -> list[T]:
        """Send many requests, each a subject and a payload, and return their parsed answers.

        `parse` gets the number of a request and its answer, as soon as it arrives. It costs a third
        of the CPU time of as many calls of `request`. At most `MAX_UNANSWERED` requests wait at
        once, fewer with large answers, and in all calls together about as many. `timeout` is
        seconds between two answers. `unheard` gets the number of a request that no one subscribes
        to, whose result is the one that it returns. Raises what `request` and `parse` raise.
        """
        for subject, _ in requests:
            self._check_guard(subject)
        timeout = timeout or self.settings.timeout
        found: dict[int, T] = {}
        await self._slots.acquire()
        self._batches += 1
        try:
            with _Slot(self._slots):
                await self._collect_each(requests, parse, timeout, found, unheard)
        except (nats.errors.Error, TimeoutError, OSError) as error:
            unanswered = next(
                (subject for at, (subject, _) in enumerate(requests) if at not in found), ""
            )
            raise self._request_error(error, unanswered, timeout) from None
        finally:
            self._batches -= 1
        return [found[number] for number in range(len(requests))]

    async def _collect_each(
        self,
        requests: Sequence[tuple[str, bytes]],
        parse: Callable[[int, bytes], T],
        timeout: float,
        found: dict[int, T],
        unheard: Callable[[int], T] | None,
    ) -> None:
        """Send the requests, and put the parsed answer of each into `found`."""

        def parse_answer(number: int, block: bytes, data: bytes) -> T:
            if not block.startswith(NO_RESPONDERS):
                return parse(number, data)
            if unheard is None:
                raise nats.errors.NoRespondersError
            return unheard(number)

        answers, sent = NumberedAnswers(len(requests), parse_answer, found), 0
        answers.has_ended = not requests
        subjects = dict.fromkeys(subject for subject, _ in requests)
        async with self._receive_answers(answers, subjects, timeout) as (inbox, wait_for_more):
            while not answers.has_ended:
                end = len(found) + self._window(answers.largest)
                for number in range(sent, min(len(requests), end)):
                    subject, payload = requests[number]
                    await self._client.publish(subject, payload, reply=f"{inbox}.{number}")
                    sent = number + 1
                await wait_for_more()
        if answers.error is not None:
            raise answers.error

    def _window(self, largest: int) -> int:
        """Return how many requests may wait for answers, the largest of which had so many bytes."""
        most = UNANSWERED_BYTES // largest if largest else MAX_IN_FLIGHT
        return max(MIN_UNANSWERED, min(most, MAX_UNANSWERED) // self._batches)

    @contextlib.asynccontextmanager
    async def _receive_answers(
        self, answers: Answers, subjects: Collection[str], timeout: float
    ) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
        """Receive answers to requests on `subjects` as long as the context lasts.

        Yields the begin of reply subjects, and a function that waits for more answers than there
        were at its last call, for `timeout` seconds. Raises TimeoutError.
        """
        inbox, loop = self._client.new_inbox(), asyncio.get_running_loop()
        async with self.wait_for_answers(subjects, timeout) as scope:
            subscription = await self._client.subscribe(f"{inbox}.*")
            number = subscription._id  # noqa: SLF001
            self._client.answers_of[number] = answers

            async def wait_for_more() -> None:
                await answers.arrived.wait()
                answers.arrived.clear()
                scope.reschedule(loop.time() + timeout)

            try:
                yield inbox, wait_for_more
            finally:
                # A closed connection has no subscriptions.
                with contextlib.suppress(nats.errors.Error, OSError):
                    await subscription.unsubscribe()
                del self._client.answers_of[number]

    @contextlib.asynccontextmanager
    async def open_inbox(self, subject: str | None = None, queue: str = "") -> AsyncIterator[Inbox]:
        """Subscribe to `subject`, by default a new inbox, as long as the context lasts.

        With `queue`, in that queue group. Raises ConnectionLostError. A subject that the user may
        not subscribe to stays silent.
        """
        try:
            subscription = await self._client.subscribe(subject or self._client.new_inbox(), queue)
        except (nats.errors.Error, OSError) as error:
            raise self.lost_error(error) from None
        try:
            yield Inbox(self, subscription)
        finally:
            # A closed connection has no subscriptions.
            with contextlib.suppress(nats.errors.Error, OSError):
                await subscription.unsubscribe()

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Send one message; answers come to `reply`. Raises ConnectionLostError."""
        self._check_guard(subject)
        try:
            await self._client.publish(subject, payload, reply=reply)
        except (nats.errors.Error, OSError) as error:
            raise self.lost_error(error) from None

    async def flush(self) -> None:
        """Wait until the server has processed all that was sent. Raises ApiError."""
        try:
            await self._client.flush(max(1, int(self.settings.timeout)))
        except (nats.errors.Error, OSError) as error:
            raise self.lost_error(error) from None

    def lost_error(self, error: BaseException, during: str = "") -> ConnectionLostError:
        """Return the error for a lost connection; it names TLS if that prevented a reconnect."""
        refused = any(NO_TLS in text for text in self._server_errors)
        what = f" during {during}" if during else ""
        reason = NO_TLS if refused else describe_error(error)
        return ConnectionLostError(
            f"the connection to {self.settings.shown} was lost{what}: {reason}",
            hint="Look at the server's log; then run the command again.",
        )

    def _request_error(self, error: Exception, subject: str, timeout: float) -> ApiError:
        """Return the error of a request by what nats-py raised."""
        if isinstance(error, nats.errors.NoRespondersError):
            return NoRespondersError(f"no responders on {subject} at {self.settings.shown}")
        if isinstance(error, TimeoutError | nats.errors.TimeoutError):
            return self._timeout_error(subject, timeout)
        return self.lost_error(error, subject)

    def _timeout_error(self, subject: str, timeout: float) -> ApiError:
        if self.is_closed:
            return self.lost_error(TimeoutError(), subject)
        return self.denied_error(subject) or ApiTimeoutError(
            f"no answer to {subject} from {self.settings.shown} within {timeout:g} s"
        )

    def denied_error(self, subject: str) -> NotPermittedError | None:
        """Return the error where the server has denied a message to `subject`, or its answers."""
        user = f"the user of connection {self.settings.key}"
        if named := next(
            filter(None, (denied_subject(text, subject) for text in reversed(self._server_errors))),
            None,
        ):
            allowed = "it" if named == subject else f"{named} (as the server names it)"
            return NotPermittedError(
                f"{self.settings.shown} does not permit this user to publish to {subject}",
                hint=f"Give {user} permission to publish to {allowed}, or use another user.",
            )
        if any(denies_inbox(text) for text in self._server_errors):
            inbox = f"{self.settings.inbox_prefix or '_INBOX'}.>"
            return NotPermittedError(
                f"{self.settings.shown}: this user may not receive answers to {subject}",
                hint=f"Give {user} permission to subscribe to {inbox},"
                " or set `inbox_prefix` to a subject that it may subscribe to.",
            )
        return None

    async def is_denied(self, verb: Literal["publish", "subscribe"], subject: str) -> bool:
        """Publish an empty message or subscribe, and return if the server denies it.

        Raises ConnectionLostError.
        """
        if verb == "publish":
            await self.publish(subject, b"")
            await self.flush()
            return self.denied_error(subject) is not None
        async with self.open_inbox(subject):
            await self.flush()
        named = f'permissions violation for subscription to "{subject.lower()}"'
        return any(named in text.lower() for text in self._server_errors)

    async def close(self) -> None:
        """Close the connection; never raises."""
        await self._discard_client()
