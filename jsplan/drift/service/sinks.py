"""The sinks of notifications: files, subjects and webhooks; and their delivery.

Each sink gets all at least once and in order, independent of the other sinks. A file has JSON lines
and may be rotated at any time. Messages on a subject are deduplicated by `Nats-Msg-Id`. A webhook
gets one POST for each: a text for a chat, the document, or a CloudEvent.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from jsplan.disk import open_private
from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.service.worker import Worker
from jsplan.errors import JsplanError
from jsplan.jetstream.publisher import Publisher
from jsplan.secrets import conceal

#: Seconds for one batch; a network file system may hang.
WRITE_TIMEOUT: float = 30.0
#: Seconds for one POST, from the name resolution to the last byte of the answer.
POST_TIMEOUT: float = 10.0
#: Characters of a message's text; Slack truncates longer ones.
MAX_TEXT_LENGTH: Final = 3_000
#: What begins a mention or an order of a chat, and the middle of a link in Markdown.
_MARKUP: Final = re.compile(r"[@<]|\](?=[(\[:])")


class SinkError(JsplanError):
    """A sink did not accept a batch; it is retried. The message has no URL, header or password."""


class Sink(Protocol):
    """One destination of notifications."""

    @property
    def name(self) -> str:
        """The name for logs and metrics, without secrets."""

    @property
    def batch(self) -> int:
        """The number of notifications in one batch."""

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Deliver them, and return when they arrived. On SinkError some may have arrived."""

    async def close(self) -> None:
        """Release resources; never raises."""


# --- the queue of one sink ------------------------------------------------------------------------

#: Notifications that wait for one sink at most.
MAX_QUEUED: Final = 10_000
#: Seconds between two attempts: first and maximum.
RETRY_INTERVALS: Final = (0.5, 30.0)
#: Seconds for one batch.
SEND_TIMEOUT: Final = 60.0


class Delivery:
    """The queue of one sink. `on_result(delivery, error)` is called with None for success.

    Beyond `MAX_QUEUED` it drops the oldest notification that a later one of the same alert
    replaces, or else the oldest.
    """

    def __init__(self, sink: Sink, on_result: Callable[[Delivery, str | None], None]) -> None:
        self.sink = sink
        self.delivered = self.dropped = self.failures = 0
        self._on_result = on_result
        self._queue: deque[AlertEvent] = deque()
        self._has_queued = asyncio.Event()
        self._quick_retry = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    @property
    def queued(self) -> int:
        """Notifications that the sink does not have yet."""
        return len(self._queue)

    def put(self, notifications: Iterable[AlertEvent]) -> None:
        """Queue them; never waits."""
        for event in notifications:
            self.idle.clear()
            self._queue.append(event)
            if len(self._queue) > MAX_QUEUED:
                self._drop_oldest()
        self._has_queued.set()

    def _drop_oldest(self) -> None:
        later = {event.alert.id for event in list(self._queue)[len(self._queue) // 2 :]}
        index = next(
            (
                i
                for i, event in enumerate(self._queue)
                if i < len(self._queue) // 2 and event.alert.id in later
            ),
            0,
        )
        del self._queue[index]
        self.dropped += 1

    async def run(self) -> None:
        """Deliver until cancelled."""
        pause = RETRY_INTERVALS[0]
        while True:
            if not self._queue:
                self.idle.set()
                self._has_queued.clear()
                await self._has_queued.wait()
                continue
            if await self._deliver_batch():
                pause = RETRY_INTERVALS[0]
                continue
            if self._quick_retry.is_set():
                await asyncio.sleep(RETRY_INTERVALS[0])
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._quick_retry.wait()
            pause = min(2 * pause, RETRY_INTERVALS[1])

    async def _deliver_batch(self) -> bool:
        batch = [self._queue[i] for i in range(min(self.sink.batch, len(self._queue)))]
        try:
            async with asyncio.timeout(SEND_TIMEOUT):
                await self.sink.send(batch)
        except (SinkError, TimeoutError) as error:
            self.failures += 1
            self._on_result(
                self, str(error) or f"{self.sink.name} took longer than {SEND_TIMEOUT:.0f} s"
            )
            return False
        for event in batch:  # some may have been dropped meanwhile
            with contextlib.suppress(ValueError):
                self._queue.remove(event)
        self.delivered += len(batch)
        self._on_result(self, None)
        return True

    def retry_quickly(self) -> None:
        """Retry without long pauses from now on: the job is about to end."""
        self._quick_retry.set()


async def deliver_all(deliveries: Iterable[Delivery], seconds: float) -> None:
    """Wait until every sink has everything, for at most `seconds`."""
    listed = list(deliveries)
    for delivery in listed:
        delivery.retry_quickly()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for delivery in listed:
                await delivery.idle.wait()


class FileSink:
    """Opens the file for each batch, so that a moved or deleted file is created again."""

    batch = 100

    def __init__(self, path: Path) -> None:
        self._path = path
        self._worker = Worker(f"sink {path.name}")
        self.name = conceal(f"file {path.name}")

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Append them in one write and wait for the disk."""
        lines = b"".join(dumps(event.to_json(), pretty=False) + b"\n" for event in notifications)
        try:
            await self._worker.run(lambda: self._append(lines), WRITE_TIMEOUT)
        except TimeoutError:
            raise SinkError(
                f"cannot write {self._path}: the disk did not answer within {WRITE_TIMEOUT:g} s"
            ) from None

    def _append(self, lines: bytes) -> None:
        try:
            with open_private(self._path, os.O_APPEND) as file:
                self._complete_last_line(file.fileno())
                file.write(lines)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise SinkError(f"cannot write {self._path}: {error.strerror}") from None

    def _complete_last_line(self, number: int) -> None:
        """End a line that a full disk cut off, so that it does not join the next one."""
        if os.fstat(number).st_size:
            with self._path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    os.write(number, b"\n")

    async def close(self) -> None:
        """Do nothing: no file stays open."""


class SubjectSink:
    """Publishes over its own connection, the only one of the job that can publish."""

    batch = 100

    def __init__(self, subject: str, publisher: Publisher) -> None:
        self.name = conceal(f"subject {subject}")
        self._publisher = publisher

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Publish them, and wait until the server has them."""
        try:
            await self._publisher.publish(
                [(event.id, dumps(event.to_json(), pretty=False)) for event in notifications]
            )
        except JsplanError as error:
            raise SinkError(f"{self.name}: {error}") from None

    async def close(self) -> None:
        """Close the connection."""
        await self._publisher.close()


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST becomes a GET and delivers nothing."""

    def redirect_request(self, *_: Any) -> None:
        """Return None: do not follow the redirect."""


class _Post:
    """One POST that can be cut off by its sockets: the library has a timeout only for each read."""

    def __init__(self, request: urllib.request.Request) -> None:
        self._request = request
        self._sockets: list[socket.socket] = []
        self._ended = False

    def send(self) -> None:
        """Send it and read the answer. Raises the errors of the library."""
        plain, encrypted = (
            _tracked_connection(http.client.HTTPConnection, self),
            _tracked_connection(http.client.HTTPSConnection, self),
        )

        class OverHttp(urllib.request.HTTPHandler):
            def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(plain, req)

        class OverHttps(urllib.request.HTTPSHandler):
            def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
                return self.do_open(encrypted, req)

        with urllib.request.build_opener(_NoRedirects, OverHttp, OverHttps).open(
            self._request, timeout=POST_TIMEOUT
        ) as answer:
            answer.read(1024)

    def track_socket(self, sock: socket.socket) -> None:
        """Store a socket for `cut_off`. Raises TimeoutError if that has happened already."""
        self._sockets.append(sock)
        if self._ended:
            raise TimeoutError

    def cut_off(self) -> None:
        """Shut down all sockets."""
        self._ended = True
        for sock in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _tracked_connection(
    kind: type[http.client.HTTPConnection], post: _Post
) -> type[http.client.HTTPConnection]:
    class Connection(kind):  # type: ignore[misc, valid-type]  # the base is chosen at run time
        def connect(self) -> None:
            super().connect()
            post.track_socket(self.sock)

    return Connection


class Webhook:
    """A webhook. `url` and `headers` are secret; messages name it by `number`."""

    batch = 1

    def __init__(
        self, number: int, url: str, headers: Mapping[str, str], format_: str = "chat"
    ) -> None:
        self.name = f"webhook {number}"
        self._url = url
        self._format = format_
        kind = "application/cloudevents+json" if format_ == "cloudevents" else "application/json"
        self._headers = {"Content-Type": kind, "User-Agent": "jsplan"} | dict(headers)
        self._worker = Worker(self.name)
        parts = urllib.parse.urlsplit(url)
        self._is_slack = (parts.hostname or "").endswith((".slack.com", ".slack-gov.com"))
        if parts.scheme not in ("http", "https"):
            raise SinkError(f"{self.name}: its URL is not http:// or https://")

    async def send(self, notifications: Sequence[AlertEvent]) -> None:
        """Post each one. Any status between 200 and 299 is an ack."""
        for event in notifications:
            await self._post(dumps(self._build_payload(event), pretty=False))

    async def _post(self, body: bytes) -> None:
        try:
            post = _Post(urllib.request.Request(self._url, body, self._headers, method="POST"))  # noqa: S310 - see __init__
            try:
                await self._worker.run(post.send, POST_TIMEOUT)
            finally:
                post.cut_off()
        except urllib.error.HTTPError as error:
            error.close()
            raise SinkError(f"{self.name} answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SinkError(f"{self.name} cannot be reached: {_failure_kind(error)}") from None

    def _build_payload(self, event: AlertEvent) -> dict[str, Any]:
        if self._format == "cloudevents":
            return build_cloud_event(event)
        if self._format == "json":
            return event.to_json()
        return build_payload(event, is_slack=self._is_slack)

    async def close(self) -> None:
        """Do nothing: no connection stays open."""


def build_cloud_event(event: AlertEvent) -> dict[str, Any]:
    """Build the structured form of CloudEvents 1.0. Its `data` is the notification."""
    names = (event.workspace, event.environment or "")
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": "/".join(("/jsplan", *(urllib.parse.quote(name) for name in names if name))),
        "type": f"jsplan.alert.{event.event}",
        "subject": event.alert.address,
        "time": event.timestamp,
        "datacontenttype": "application/json",
        "data": event.to_json(),
    }


def build_payload(event: AlertEvent, *, is_slack: bool = False) -> dict[str, Any]:
    """Build the message: a chat shows `text`; `metadata` is Slack's field for programs."""
    alert = event.alert
    data = {
        "id": event.id,
        "alert": alert.id,
        "event": event.event,
        "kind": alert.kind,
        "severity": alert.severity,
        "address": alert.address,
        "workspace": event.workspace,
        "environment": event.environment or "",
        "timestamp": event.timestamp,
        "since": event.since,
        "by": str(event.by or ""),
        "details": "\n".join(alert.details)[:MAX_TEXT_LENGTH],
    }
    return {
        "text": (_escape_slack if is_slack else _escape_markdown)(event.text)[:MAX_TEXT_LENGTH],
        "metadata": {"event_type": "jsplan_drift", "event_payload": data},
    }


def _escape_markdown(text: str) -> str:
    """Break mentions, links and images of Mattermost and others with an invisible joiner.

    Other characters stay: programs read the text too.
    """
    return _MARKUP.sub("\\g<0>\u2060", text)


def _escape_slack(text: str) -> str:
    """Escape Slack's markup: a stream's description must not mention a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _failure_kind(error: BaseException) -> str:
    """Return the kind of failure only: messages of the library may contain the secret URL."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror or ""
    return type(reason).__name__
