"""One POST per notice, in the shape that Slack's incoming webhooks take, and with them Mattermost, Rocket.Chat and many more."""

from __future__ import annotations

import contextlib
import http.client
import socket
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any, Final

from jsplan.documents.alert import AlertEvent
from jsplan.documents.base import dumps
from jsplan.drift.sinks.sink import SinkError
from jsplan.drift.worker import Worker

#: Seconds for one POST, from the name's address to the last byte of the answer.
POST_TIMEOUT: float = 10.0
#: Characters of a message's text; Slack cuts longer ones off.
MAX_TEXT_LENGTH: Final = 3_000


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A POST that is redirected becomes a GET, and arrives nowhere: that is a failure, not a success."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


class _Post:
    """One POST. It knows its sockets, so that it can be cut off: the library bounds each read, and not all of them together."""

    def __init__(self, request: urllib.request.Request) -> None:
        self._request = request
        self._sockets: list[socket.socket] = []
        self._ended = False

    def send(self) -> None:
        """Send it and read the answer. Raises what the library raises."""
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

    def track_socket(self, over: socket.socket) -> None:
        """Remember a socket. Raises TimeoutError when it comes too late."""
        self._sockets.append(over)
        if self._ended:
            raise TimeoutError

    def cut_off(self) -> None:
        """Cut it off, whatever it waits for."""
        self._ended = True
        for one in self._sockets:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(one, socket.SHUT_RDWR)


def _tracked_connection(
    kind: type[http.client.HTTPConnection], post: _Post
) -> type[http.client.HTTPConnection]:
    class Connection(kind):  # type: ignore[misc, valid-type]  # a class that is chosen when it runs
        def connect(self) -> None:
            super().connect()
            post.track_socket(self.sock)

    return Connection


class Webhook:
    """`url` and `headers` are secrets: nothing but `number`, its place among the sinks, ever names it."""

    batch = 1

    def __init__(self, number: int, url: str, headers: Mapping[str, str]) -> None:
        self.name = f"webhook {number}"
        self._url = url
        self._headers = {"Content-Type": "application/json", "User-Agent": "jsplan"} | dict(headers)
        self._worker = Worker(self.name)
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise SinkError(f"{self.name}: its URL is not http:// or https://")

    async def send(self, notices: Sequence[AlertEvent]) -> None:
        """Post each, and take any answer between 200 and 299 for an ack."""
        for notice in notices:
            await self._post(dumps(build_payload(notice), pretty=False))

    async def _post(self, body: bytes) -> None:
        try:
            post = _Post(urllib.request.Request(self._url, body, self._headers, method="POST"))  # noqa: S310 - checked above
            try:
                await self._worker.run(post.send, POST_TIMEOUT)
            finally:
                post.cut_off()
        except urllib.error.HTTPError as error:
            error.close()
            raise SinkError(f"{self.name} answered {error.code}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise SinkError(f"{self.name} cannot be reached: {_failure_kind(error)}") from None

    async def close(self) -> None:
        """Nothing is held."""


def build_payload(notice: AlertEvent) -> dict[str, Any]:
    """The message: `text` is all that a chat shows; the rest is Slack's own place for data that programs read."""
    s = notice.situation
    data = {
        "id": notice.id,
        "alert": s.id,
        "event": notice.occasion,
        "kind": s.kind,
        "severity": s.severity,
        "address": s.address,
        "workspace": notice.workspace,
        "environment": notice.environment or "",
        "timestamp": notice.timestamp,
        "since": notice.since,
        "by": notice.by_text,
        "details": "\n".join(s.details)[:MAX_TEXT_LENGTH],
    }
    return {
        "text": _escape(notice.text)[:MAX_TEXT_LENGTH],
        "metadata": {"event_type": "jsplan_drift", "event_payload": data},
    }


def _escape(text: str) -> str:
    """Slack reads `<!channel>` and links in angle brackets; a stream's description must not call a whole channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _failure_kind(error: BaseException) -> str:
    """The kind of failure alone: messages of the libraries may hold the URL, which is a secret."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return (
        (reason.strerror or "")
        if isinstance(reason, OSError) and reason.strerror
        else type(reason).__name__
    )
