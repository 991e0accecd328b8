"""One POST per notification: a text for a chat, the document, or a CloudEvent."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.service.sinks.delivery import SinkError
from jsplan.drift.service.worker import Worker

#: Seconds for one POST, from the name resolution to the last byte of the answer.
POST_TIMEOUT: float = 10.0
#: Characters of a message's text; Slack truncates longer ones.
MAX_TEXT_LENGTH: Final = 3_000
#: What begins a mention or an order of a chat, and the middle of a link in Markdown.
_MARKUP: Final = re.compile(r"[@<]|\](?=[(\[:])")


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
    return (
        (reason.strerror or "")
        if isinstance(reason, OSError) and reason.strerror
        else type(reason).__name__
    )
