"""The JetStream JSON API of one domain: requests and answers as raw dicts, errors, paging."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import orjson
from msgspec.structs import replace

from jsplan.config.model import Domain
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectionLostError,
    NoRespondersError,
    NotPermittedError,
    ServerRefusedError,
)
from jsplan.identity import FindKnownObjects, find_no_objects, restore_created
from jsplan.jetstream import answer_schema
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.leftovers import create_without_leftovers, has_leftovers
from jsplan.jetstream.read_only import READ_ONLY_VERBS
from jsplan.jetstream.restore_lock import RestoreLock
from jsplan.resources.error_codes import (
    CONSUMER_WITHOUT_SERVER,
    NO_MEMORY,
    NO_MESSAGE,
    NO_STORAGE,
    NOT_FOUND,
    STORE_NOT_CREATED,
    STREAM_WITHOUT_SERVER,
)

T = TypeVar("T")

#: The errors of what a list has as missing: what INFO answers for it (10118, 10119).
NO_SERVER = "stream is offline"
NO_SERVER_OF_CONSUMER = "consumer is offline"
#: The requests that create and delete streams.
_CHANGE_STREAMS: Final = ("STREAM.CREATE.", "STREAM.DELETE.")
#: Pages of one list at most: a million names, or a quarter of that of streams or consumers.
MAX_PAGES: Final = 1_000
#: Seconds. While a cluster elects a leader, such as after scaling, INFO gets no answer. The second
#: is for commands that only read.
ELECTION_TIMEOUT, READING_TIMEOUT = 60.0, 15.0
#: Seconds for a consumer that was just created to be found.
NEW_CONSUMER_TIMEOUT: Final = 3.0
#: Seconds before a stream is created again whose store the server could not create. A server that
#: deletes the last stream of an account also removes the folder that a new stream is created in.
STORE_RETRY_DELAY: Final = 0.2


def unreadable_answer_error(who: str, api: str, wrong: Exception) -> ApiError:
    """Return the error for an answer that is JSON but not JetStream's."""
    return ApiError(
        f"{who} answered {api} with something that is not JetStream's: {wrong}",
        hint="Check that only nats-server subscribes to the subject.",
    )


async def request_system(
    link: NatsConnection, kind: str, subject: str, payload: bytes, timeout: float | None = None
) -> dict[str, Any]:
    """Send a system request, and return its answer, which has the shape of its `kind`.

    `kind` is one of the subjects in `answers`. Raises what `NatsConnection.request` raises, and
    ApiError for an unreadable answer.
    """
    answer = await link.request(subject, payload, timeout)
    try:
        return answer_schema.parse_system_answer(kind, answer)
    except answer_schema.InvalidAnswer as wrong:
        raise unreadable_answer_error(link.settings.shown, subject, wrong) from None


def _no_server_error(api: str) -> dict[str, Any]:
    """Return the error that INFO has for an object whose servers are all down."""
    if api.startswith("STREAM."):
        return {"code": 500, "err_code": STREAM_WITHOUT_SERVER, "description": NO_SERVER}
    found = {"err_code": CONSUMER_WITHOUT_SERVER, "description": NO_SERVER_OF_CONSUMER}
    return {"code": 500, **found}


def _lacks_store(error: ApiError | None, api: str) -> bool:
    """Return True for a stream whose store the server could not create at this moment."""
    return (
        isinstance(error, ServerRefusedError)
        and error.err_code == STORE_NOT_CREATED
        and api.startswith("STREAM.CREATE.")
    )


def message_headers(message: Mapping[str, Any]) -> bytes:
    """Return the header block of a message of MSG.GET; empty where it has none."""
    return base64.b64decode(message.get("hdrs") or "")


def has_header(message: Mapping[str, Any], name: str) -> bool:
    """Return True if a message of MSG.GET has a header of this name."""
    return f"\r\n{name}:".encode() in message_headers(message)


class DomainApi:
    """The API of one domain over one connection. `read_only` refuses requests that could write.

    After a restart a server may report another `created`. Answers then have the `created` that
    `known_objects` has.
    """

    def __init__(
        self,
        domain: Domain,
        connection: NatsConnection,
        *,
        read_only: bool,
        known_objects: FindKnownObjects = find_no_objects,
    ) -> None:
        self.domain = domain
        self.connection = connection
        self.read_only = read_only
        self._known_objects = known_objects
        if connection.guard is not None:
            assert read_only, f"a guarded connection cannot write to {domain.key}"
            connection.guard.allow_prefix(domain.api_prefix)

    def behind(self, prefix: str | None) -> DomainApi:
        """Return the API of another prefix over the same connection, to read; self without one."""
        if not prefix:
            return self
        domain = replace(self.domain, api_prefix=prefix)
        return DomainApi(domain, self.connection, read_only=True)

    @property
    def restore_lock(self) -> RestoreLock:
        """The lock between what creates and deletes streams of the domain, and its restores."""
        return self.connection.restore_lock(self.domain.api_prefix)

    async def request(
        self, api: str, payload: dict[str, Any] | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Send `<prefix>.<api>` and return the parsed answer.

        A stream that is created with messages of a deleted one is created again, without them.

        Raises ServerRefusedError with the server's `err_code`, NoRespondersError,
        NotPermittedError, ApiTimeoutError, or ApiError if the answer is no JSON object.
        """
        if self.read_only and not api.startswith(READ_ONLY_VERBS):
            raise AssertionError(f"a read-only client was asked to send {api}")

        if api.startswith(_CHANGE_STREAMS):
            async with self.restore_lock.change_streams():
                answer = await self._change_streams(api, payload, timeout)
        else:
            answer = await self._request(api, payload, timeout)
        restore_created(answer, self.domain.key, self._known_objects)
        return answer

    async def _change_streams(
        self, api: str, payload: dict[str, Any] | None, timeout: float | None
    ) -> dict[str, Any]:
        answer = await self._request(api, payload, timeout)
        if api.startswith("STREAM.CREATE.") and has_leftovers(answer):
            assert payload is not None
            answer = await self._create_again(payload, answer, timeout)
        return answer

    async def _create_again(
        self, payload: dict[str, Any], answer: dict[str, Any], timeout: float | None
    ) -> dict[str, Any]:
        """Create a stream again that has messages of a deleted one, as `answer` shows."""

        async def send(api: str, payload: dict[str, Any] | None) -> dict[str, Any]:
            return await self._request(api, payload, timeout)

        return await create_without_leftovers(send, payload, answer)

    async def _create_apart(
        self, payload: dict[str, Any], answer: dict[str, Any], timeout: float
    ) -> dict[str, Any]:
        async with self.restore_lock.change_streams():
            return await self._create_again(payload, answer, timeout)

    async def create_each(
        self,
        requests: Sequence[tuple[str, dict[str, Any]]],
        outcomes: dict[int, ApiError | None],
        *,
        timeout: float,
    ) -> None:
        """Send many creations at once, each as `request` does.

        `outcomes` gets by number the error of each, None for one that was answered. `timeout` is
        seconds for all of them. Raises the error of those that are missing in it: they may have
        arrived.
        """
        assert not self.read_only, "a read-only client was asked to create"
        prefix = self.domain.api_prefix
        leftovers: dict[int, dict[str, Any]] = {}

        def take(number: int, data: bytes) -> None:
            api = requests[number][0]
            try:
                answer = self.parse(api, data)
            except ApiError as error:
                outcomes[number] = error
                return
            if api.startswith("STREAM.CREATE.") and has_leftovers(answer):
                leftovers[number] = answer
            else:
                outcomes[number] = None

        def note_silence(number: int) -> None:
            outcomes[number] = self._no_responders_error()

        sent = [(f"{prefix}.{api}", orjson.dumps(payload)) for api, payload in requests]
        try:
            async with self.restore_lock.change_streams(), asyncio.timeout(timeout):
                each = self.connection.request_each(sent, take, timeout, unheard=note_silence)
                await self._explain(each)
        except TimeoutError:
            left = len(requests) - len(outcomes) - len(leftovers)
            raise ApiTimeoutError(
                f"domain {self.domain.key} does not answer: "
                f"{left} of {len(requests)} creations within {timeout:g} s"
            ) from None
        for number, (api, payload) in enumerate(requests):
            if number in leftovers:
                again = self._create_apart(payload, leftovers[number], timeout)
            elif _lacks_store(outcomes[number], api):
                again = self.request(api, payload, timeout=timeout)
            else:
                continue
            try:
                await again
            except ApiError as error:
                outcomes[number] = error
            else:
                outcomes[number] = None

    async def _request(
        self, api: str, payload: dict[str, Any] | None, timeout: float | None
    ) -> dict[str, Any]:
        try:
            return self.parse(api, await self._send(api, payload, timeout))
        except ServerRefusedError as error:
            if not _lacks_store(error, api):
                raise
        await asyncio.sleep(STORE_RETRY_DELAY)
        return self.parse(api, await self._send(api, payload, timeout))

    async def _send(self, api: str, payload: dict[str, Any] | None, timeout: float | None) -> bytes:
        subject = f"{self.domain.api_prefix}.{api}"
        data = orjson.dumps(payload) if payload is not None else b""
        return await self._explain(self.connection.request(subject, data, timeout))

    def _no_responders_error(self) -> NoRespondersError:
        return NoRespondersError(
            f"domain {self.domain.key} does not answer: no responders on {self.domain.api_prefix}"
        )

    async def _explain(self, answer: Awaitable[T]) -> T:
        """Await an answer of the connection; an error names the domain."""
        try:
            return await answer
        except NoRespondersError:
            raise self._no_responders_error() from None
        except NotPermittedError as error:
            raise NotPermittedError(f"domain {self.domain.key}: {error}", hint=error.hint) from None
        except (ApiTimeoutError, ConnectionLostError) as error:
            text = f"domain {self.domain.key} does not answer: {error}"
            raise type(error)(text, hint=error.hint) from None

    async def publish(
        self, subject: str, payload: bytes, headers: Mapping[str, str], *, timeout: float
    ) -> dict[str, Any]:
        """Store one message and return the acknowledgement. A bucket of any domain is reached.

        Servers map `$KV.>` below the API prefix of their domain. Raises what `request` raises:
        NotPermittedError where no stream stores the subject, ServerRefusedError with
        WRONG_LAST_SEQUENCE for a condition that does not hold.
        """
        if self.read_only:
            raise AssertionError(f"a read-only client was asked to publish to {subject}")
        prefix = self.domain.api_prefix
        path = subject if prefix == "$JS.API" else f"{prefix}.{subject}"
        return await self.store_message(path, subject, payload, headers, timeout)

    async def publish_plainly(
        self, subject: str, payload: bytes, headers: Mapping[str, str], *, timeout: float
    ) -> dict[str, Any]:
        """Store one message as `publish` does, on its own subject: that of an object store.

        No server maps `$O.>` below an API prefix. So each stream of the account that has the
        subject stores the message, in linked domains too. Raises ApiError if a stream of another
        domain answered first.
        """
        if self.read_only:
            raise AssertionError(f"a read-only client was asked to publish to {subject}")
        answer = await self.store_message(subject, subject, payload, headers, timeout)
        if answer.get("domain") != self.domain.js_domain:
            raise ApiError(
                f"domain {self.domain.key}: a stream of domain {answer.get('domain')} also stores "
                f"{subject}",
                hint="Object stores of linked domains need different names.",
            )
        return answer

    async def store_message(
        self, path: str, subject: str, payload: bytes, headers: Mapping[str, str], timeout: float
    ) -> dict[str, Any]:
        """Publish a message for `subject` to `path`, and return the acknowledgement.

        `publish` and `publish_plainly` call this.
        """
        most = int(self.connection.server.get("max_payload") or 0)
        if 0 < most < len(payload) + sum(len(n) + len(v) + 4 for n, v in headers.items()) + 12:
            raise NotPermittedError(
                f"domain {self.domain.key}: {len(payload):,} bytes are too many for one message "
                f"(max_payload is {most:,})",
                hint="Store less, or raise max_payload of the server.",
            )
        try:
            answer = await self.connection.request(path, payload, timeout, headers=dict(headers))
        except NoRespondersError:
            raise NotPermittedError(
                f"domain {self.domain.key}: no stream acknowledges messages on {path}",
                hint="An account that imports the API must import this subject too.",
            ) from None
        return self.parse(f"a message on {subject}", answer, "PUBLISH")

    async def request_snapshot(
        self, stream: str, payload: dict[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """Send `STREAM.SNAPSHOT`, also from a read-only client: it changes nothing.

        It makes the server read and deliver the whole stream, so `request` does not send it. Only
        `snapshots.open_snapshot` calls this.

        Raises what `request` raises.
        """
        subject = f"STREAM.SNAPSHOT.{stream}"
        return self.parse(subject, await self._send(subject, payload, timeout))

    async def request_many(self, api: str, payload: dict[str, Any]) -> list[tuple[bytes, bytes]]:
        """Return header block and payload of each answer; the last has the status. Read-only.

        Raises NoRespondersError, ApiTimeoutError and ApiError.
        """
        if not api.startswith(READ_ONLY_VERBS):
            raise AssertionError(f"{api} does not read")
        return await self.connection.request_many(
            f"{self.domain.api_prefix}.{api}", orjson.dumps(payload)
        )

    def parse(self, api: str, data: bytes, shape: str | None = None) -> dict[str, Any]:
        """Parse an answer to `api` and check it against `shape`, by default that of `api`.

        Raises ServerRefusedError for an error in the answer, else ApiError.
        """
        try:
            answer = orjson.loads(data)
        except orjson.JSONDecodeError:
            answer = None
        if not isinstance(answer, dict):
            raise ApiError(
                f"domain {self.domain.key} answered {api} with something that is not JSON:"
                f" {data[:80]!r}"
            )
        try:
            error = answer.get("error")
            if error is not None:
                answer_schema.check_refusal(answer)
                raise self._refused_error(api, error)
            answer_schema.check_answer(shape or api, answer)
        except answer_schema.InvalidAnswer as wrong:
            raise unreadable_answer_error(f"domain {self.domain.key}", api, wrong) from None
        return answer

    def _refused_error(self, api: str, error: dict[str, Any]) -> ServerRefusedError:
        code = f"{error.get('code', 0)}/{error.get('err_code', 0)}"
        text = f"{error.get('description', 'no description')} ({code})"
        if error.get("err_code") in (NO_STORAGE, NO_MEMORY) or "insufficient storage" in text:
            store = "max_memory_store" if error.get("err_code") == NO_MEMORY else "max_file_store"
            text += (
                f": the max_bytes of all streams together exceed {store} of the servers, or the "
                "limit of the account"
            )
        return ServerRefusedError.of(f"domain {self.domain.key} refused {api}: {text}", error)

    async def request_info(self, api: str) -> dict[str, Any] | None:
        """Send an INFO request. Return None where the object does not exist.

        Without an answer the request is repeated while the domain answers, for up to
        `ELECTION_TIMEOUT`. Then no server of the object is up: raises ServerRefusedError.
        """
        end = time.monotonic() + (READING_TIMEOUT if self.read_only else ELECTION_TIMEOUT)
        while True:
            try:
                return await self.request(api)
            except ServerRefusedError as error:
                if error.err_code in NOT_FOUND:
                    return None
                raise
            except ApiTimeoutError:
                await self.request("INFO")
                if time.monotonic() > end:
                    raise self._refused_error(api, _no_server_error(api)) from None

    async def request_infos(
        self,
        apis: Sequence[str],
        take: Callable[[int, dict[str, Any] | None], object],
        payload: bytes = b"",
    ) -> None:
        """Send many INFO or LIST requests at once; `take` gets the number and the answer of each.

        The answer is None where the object does not exist. Refused requests are not taken: one
        `request_info` says why. Raises what `request` raises, with the first failure; what was
        taken by then is right.
        """
        prefix = self.domain.api_prefix

        def parse(number: int, data: bytes) -> None:
            try:
                answer = self.parse(apis[number], data)
            except ServerRefusedError as error:
                if error.err_code in NOT_FOUND:
                    take(number, None)
                return
            restore_created(answer, self.domain.key, self._known_objects)
            take(number, answer)

        requests = [(f"{prefix}.{api}", payload) for api in apis]
        await self._explain(self.connection.request_each(requests, parse))

    async def stream_info(self, name: str) -> dict[str, Any] | None:
        """Return `STREAM.INFO`, or None if there is no such stream."""
        return await self.request_info(f"STREAM.INFO.{name}")

    async def consumer_info(self, stream: str, name: str) -> dict[str, Any] | None:
        """Return `CONSUMER.INFO`, or None if there is no such consumer or stream."""
        return await self.request_info(f"CONSUMER.INFO.{stream}.{name}")

    async def get_message(self, stream: str, query: dict[str, Any]) -> dict[str, Any] | None:
        """Return the message that MSG.GET finds, or None if there is none."""
        try:
            answer = await self.request(f"STREAM.MSG.GET.{stream}", query)
        except ServerRefusedError as error:
            if error.err_code == NO_MESSAGE:
                return None
            raise
        message: dict[str, Any] = answer["message"]
        return message

    async def get_messages(
        self, stream: str, seqs: Sequence[int], read: Callable[[dict[str, Any]], T]
    ) -> list[T]:
        """Pass the message of each sequence that there is to `read`, and return the results.

        By MSG.GET, many requests at once. Raises what `request` raises.
        """
        api = f"STREAM.MSG.GET.{stream}"

        def parse(_: int, answer: bytes) -> T | None:
            try:
                return read(self.parse(api, answer)["message"])
            except ServerRefusedError as error:
                if error.err_code == NO_MESSAGE:
                    return None
                raise

        subject = f"{self.domain.api_prefix}.{api}"
        queries = [(subject, b'{"seq":%d}' % seq) for seq in seqs]
        found = await self._explain(self.connection.request_each(queries, parse))
        return [each for each in found if each is not None]

    async def pages(
        self,
        api: str,
        key: str,
        payload: dict[str, Any] | None = None,
        first: dict[str, Any] | None = None,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the pages of an answer until `total` is reached or nothing is under `key`.

        Subjects are those in the state of a stream, of STREAM.INFO.
        `first` is the first page, where it was read before. Pages are positional: an item may come
        twice if the list changes meanwhile. Raises ApiError after `MAX_PAGES`.
        """
        offset, before = 0, None
        for _ in range(MAX_PAGES):
            page = first or await self.request(api, (payload or {}) | {"offset": offset})
            first = None
            yield page
            got = (page["state"] if key == "subjects" else page).get(key) or ()
            offset += len(got)
            if not got or got == before or offset >= (page.get("total") or 0):
                return
            before = got
        raise ApiError(
            f"domain {self.domain.key} answered {api} with more than {MAX_PAGES:,} pages,"
            " and says that there are more",
            hint="Check that a nats-server answers there.",
        )

    async def list_names(self, api: str, key: str) -> list[str]:
        """Return all names of a paged NAMES request, each once."""
        found: dict[str, None] = {}
        async for page in self.pages(api, key):
            found |= dict.fromkeys(page.get(key) or ())
        return list(found)

    async def stream_names(self) -> list[str]:
        """List the streams of the account in this domain, with offline ones (LIST omits those)."""
        return await self.list_names("STREAM.NAMES", "streams")

    async def streams(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return STREAM.INFO of each stream, and by name why others cannot be read.

        A cluster lists a stream whose servers are down as `missing`, with a state of zeros.
        """
        return await self._list_infos("STREAM.LIST", "streams", NO_SERVER)

    async def consumers(
        self, stream: str, first: dict[str, Any] | None = None
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return CONSUMER.INFO of each consumer of one stream, and why others cannot be read.

        A cluster lists a consumer whose servers are down as `missing`, with a state of zeros and
        without a name. `first` is the first page, where it was read before.
        """
        api = f"CONSUMER.LIST.{stream}"
        return await self._list_infos(api, "consumers", NO_SERVER_OF_CONSUMER, first)

    async def _list_infos(
        self, api: str, key: str, missing: str, first: dict[str, Any] | None = None
    ) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """Return what is under `key` on all pages, each once, and by name what has no server."""
        found, offline = dict[str, dict[str, Any]](), dict[str, str]()
        async for page in self.pages(api, key, first=first):
            for info in page.get(key) or ():
                found[info["config"]["name"] if key == "streams" else info["name"]] = info
            offline |= dict.fromkeys(page.get("missing") or (), missing)
            offline |= page.get("offline") or {}
        return [info for name, info in found.items() if name and name not in offline], offline

    async def all_consumers(self, stream: str) -> list[dict[str, Any]]:
        """Return CONSUMER.INFO of each consumer; raise ApiError where one cannot be read.

        What is decided by the positions of consumers needs all of them. A cluster of 2.10 lists a
        consumer that is just being created as missing, after 4 s, so it is asked again.
        """
        infos, offline = await self.consumers(stream)
        end = time.monotonic() + NEW_CONSUMER_TIMEOUT
        while offline and time.monotonic() < end:
            await asyncio.sleep(0.1)
            infos, offline = await self.consumers(stream)
        for name, reason in sorted(offline.items()):
            raise ApiError(
                f"domain {self.domain.key}: consumer {name} of stream {stream} cannot be read, "
                f"and what happens to its messages depends on it: {reason}",
                hint="Start a server that has it, or leave the stream out with --exclude.",
            )
        return infos

    async def consumer_names(self, stream: str) -> list[str]:
        """List the consumers of one stream."""
        return await self.list_names(f"CONSUMER.NAMES.{stream}", "consumers")
