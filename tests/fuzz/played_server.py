"""A link whose answers come from the document, with a KV bucket in memory."""

from __future__ import annotations

import base64
import contextlib
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, TypeVar

from jsplan import subjects
from jsplan.errors import ApiTimeoutError, NoRespondersError
from jsplan.jetstream import pool
from jsplan.jetstream.connection import Inbox, InboxMessage, NatsConnection, valid_server_info
from jsplan.jetstream.contexts import ConnectionSettings
from jsplan.jetstream.login import check_files
from jsplan.jetstream.read_only import ReadOnlyGuard
from jsplan.state import bucket
from tests.fuzz.documents import Document, bytes_of, text_of

T = TypeVar("T")

#: Names of parts: an answer `$> SUBJECT.json`, a second one `$> SUBJECT #2.json`, and keys of the bucket.
ANSWER, MANY, KEY, GREETING = "$> ", "$>> ", "$kv ", "$info.json"
CREATED: Final = "2026-01-01T00:00:00Z"
_GREETING: Final = {
    "server_name": "n1",
    "version": "2.12.0",
    "domain": "hub",
    "jetstream": True,
    "max_payload": 1 << 20,
    "headers": True,
    "api_lvl": 2,
}
_ACCOUNT: Final = {
    "type": "io.nats.jetstream.api.v1.account_info_response",
    "memory": 0,
    "storage": 0,
    "streams": 1,
    "consumers": 1,
    "limits": {"max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1},
    "api": {"level": 2, "total": 9, "errors": 0},
}
_STATE: Final = {
    "messages": 3,
    "bytes": 300,
    "first_seq": 1,
    "first_ts": CREATED,
    "last_seq": 3,
    "last_ts": CREATED,
    "consumer_count": 0,
    "num_subjects": 1,
}
_CONFIG: Final[dict[str, Any]] = {
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "max_msg_size": -1,
    "discard": "old",
    "storage": "file",
    "num_replicas": 1,
    "duplicate_window": 120_000_000_000,
    "compression": "none",
    "allow_direct": False,
    "metadata": {},
}
_NOT_FOUND: Final = {
    "STREAM.MSG": (10037, "no message found"),
    "CONSUMER": (10014, "consumer not found"),
    "STREAM": (10059, "stream not found"),
}


def _parsed(payload: bytes) -> dict[str, Any]:
    """Return the JSON of a request, or {} for other payloads, such as a snapshot chunk."""
    with contextlib.suppress(ValueError, RecursionError):
        result = json.loads(payload)
        return result if isinstance(result, dict) else {}
    return {}


def stream(name: str, **config: Any) -> dict[str, Any]:
    """Return STREAM.INFO of a stream."""
    return {
        "config": {"name": name, "subjects": [f"{name}.*"]} | _CONFIG | config,
        "created": CREATED,
        "state": dict(_STATE),
        "cluster": {"leader": "n1"},
        "ts": CREATED,
    }


@dataclass
class Script:
    """The answers of the servers of one document. `known` means that every stream exists."""

    document: Document = field(default_factory=dict)
    known: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    made: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, list[tuple[int, bytes, bytes]]] = field(default_factory=dict)
    bucket: bool = False
    sequence: int = 0

    def __post_init__(self) -> None:
        for name, content in self.document.items():
            if name.startswith(KEY):
                self.bucket = True
                self.store(name.removeprefix(KEY).partition(" ")[0], {}, content)

    # --- Answers

    def answer(self, subject: str, payload: bytes, headers: Mapping[str, str]) -> bytes:
        """Return the answer to a request."""
        if (written := self._recorded_answer(subject, payload)) is not None:
            return written
        if "$KV." in subject:
            return self._put(subject.partition("$KV.")[2].partition(".")[2], payload, headers)
        verb = subject.partition(".API.")[2]
        request = _parsed(payload)
        if (
            verb.partition(".KV_")[2]
            and self.bucket
            and (result := self._bucket_answer(verb, request)) is not None
        ):
            return json.dumps(result).encode()
        return json.dumps(self._default_answer(subject, verb, request)).encode()

    def _recorded_answer(self, subject: str, payload: bytes) -> bytes | None:
        # A hostile server gives the same answer on every page.
        first_page = [f'{subject} {{"offset":0}}'] if b'"offset"' in payload else []
        for request_key in (f"{subject} {text_of(payload)}", subject, *first_page):
            self.counts[request_key] += 1
            for number in range(self.counts[request_key], 0, -1):
                name = f"{ANSWER}{request_key}{f' #{number}' if number > 1 else ''}.json"
                if name in self.document:
                    return self.document[name]
        return None

    def many(self, subject: str) -> list[tuple[bytes, bytes]]:
        """Return the answers to one request that has many."""
        content = self.document.get(f"{MANY}{subject}.json")
        with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
            if content is not None:
                return [(bytes_of(block), bytes_of(data)) for block, data in json.loads(content)]
        return [(b"NATS/1.0 404 Message Not Found\r\n\r\n", b"")]

    def _default_answer(self, subject: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        if verb == "INFO":
            domain = (
                subject.split(".")[1]
                if subject.startswith("$JS.") and subject.count(".") == 3
                else "hub"
            )
            return _ACCOUNT | {"domain": domain}
        words = verb.split(".")
        kind, action, name = words[0], ".".join(words[1:2]), ".".join(words[2:])
        key = f"{subject.partition('.API.')[0]} {kind} {name}"
        if action in ("NAMES", "LIST"):
            return {
                "total": 0,
                "offset": 0,
                "limit": 1024,
                "streams" if kind == "STREAM" else "consumers": [],
            }
        if action in ("CREATE", "UPDATE"):
            config = request.get("config", request)
            self.made[key] = (
                stream(name, **{key: value for key, value in config.items() if key != "name"})
                if kind == "STREAM"
                else {"config": config, "created": CREATED, "name": words[-1]}
            )
            self.bucket = self.bucket or name.startswith("KV_")
            return self.made[key]
        if action in ("DELETE", "PURGE", "PAUSE"):
            self.made.pop(key, None)
            return {"success": True, "purged": 0}
        if action == "INFO" and (
            key in self.made or (self.known and kind == "STREAM" and not name.startswith("KV_"))
        ):
            return self.made.get(key) or stream(name)
        code, text = next(
            result
            for start, result in _NOT_FOUND.items()
            if verb.startswith(start) or start == "STREAM"
        )
        return {"error": {"code": 404, "err_code": code, "description": text}}

    # --- The bucket

    def store(self, key: str, headers: Mapping[str, str], data: bytes) -> int:
        """Store a value under a key and return its sequence."""
        self.sequence += 1
        if headers.get("Nats-Rollup") == "sub":
            self.values[key] = []
        block = "".join(f"{name}: {value}\r\n" for name, value in headers.items()).encode()
        self.values.setdefault(key, []).append(
            (self.sequence, b"NATS/1.0\r\n" + block + b"\r\n" if block else b"", data)
        )
        return self.sequence

    def _put(self, key: str, data: bytes, headers: Mapping[str, str]) -> bytes:
        expected = headers.get("Nats-Expected-Last-Subject-Sequence")
        of = (
            headers.get("Nats-Expected-Last-Subject-Sequence-Subject", f"$KV.x.{key}")
            .partition("$KV.")[2]
            .partition(".")[2]
        )
        values = self.values.get(of, [])
        last = headers.get("Nats-Expected-Last-Sequence")
        if (expected is not None and int(expected) != (values[-1][0] if values else 0)) or (
            last is not None and int(last) != self.sequence
        ):
            return (
                b'{"error": {"code": 400, "err_code": 10071, "description": "wrong last sequence"}}'
            )
        return b'{"stream": "KV_x", "seq": %d}' % self.store(key, headers, data)

    def _bucket_answer(self, verb: str, request: dict[str, Any]) -> dict[str, Any] | None:
        if verb.startswith("STREAM.MSG.GET."):
            wanted = (
                str(request.get("last_by_subj") or request.get("next_by_subj"))
                .partition("$KV.")[2]
                .partition(".")[2]
            )
            result = [
                entry
                for entry in self.values.get(wanted, [])
                if entry[0] >= int(request.get("seq", 0))
            ]
            if not result:
                return {
                    "error": {"code": 404, "err_code": 10037, "description": "no message found"}
                }
            sequence, block, data = result[0] if "next_by_subj" in request else result[-1]
            more = {"hdrs": base64.b64encode(block).decode()} if block else {}
            return {
                "message": {
                    "seq": sequence,
                    "subject": wanted,
                    "data": base64.b64encode(data).decode(),
                    "time": CREATED,
                }
                | more
            }
        if verb.startswith("STREAM.INFO."):
            pattern = (
                str(request.get("subjects_filter", ">")).partition("$KV.")[2].partition(".")[2]
                or ">"
            )
            keys = {
                f"$KV.{verb[15:]}.{key}": len(values)
                for key, values in self.values.items()
                if values and subjects.is_subset(key, pattern)
            }
            page = dict(list(keys.items())[int(request.get("offset", 0)) :])
            info = stream(
                verb[12:],
                subjects=[f"$KV.{verb[15:]}.>"],
                allow_msg_ttl=True,
                max_msgs_per_subject=10,
            )
            return info | {
                "total": len(keys),
                "state": _STATE | {"subjects": page, "last_seq": self.sequence},
            }
        if verb.startswith("STREAM.PURGE."):
            pattern = str(request.get("filter", ">")).partition("$KV.")[2].partition(".")[2]
            self.values = {
                key: values
                for key, values in self.values.items()
                if not subjects.is_subset(key, pattern)
            }
            return {"success": True, "purged": 1}
        return None


class _PlayedInbox(Inbox):
    """An inbox for requests that are answered at once."""

    def __init__(self, link: NatsConnection) -> None:
        self.subject = "_INBOX.fuzz"
        self._connection = link
        self.queue: deque[bytes] = deque()

    async def next(self, timeout: float, waiting_for: str) -> InboxMessage:
        """Return the next answer without waiting."""
        if not self.queue:
            raise ApiTimeoutError(f"{waiting_for}: nothing came for {timeout:g} s")
        return InboxMessage("", "", self.queue.popleft())


class PlayedLink(NatsConnection):
    """A link that answers from the script of the current document."""

    script: ClassVar[Script] = Script()

    def __init__(self, target: ConnectionSettings, seal: ReadOnlyGuard | None = None) -> None:
        super().__init__(target, seal)
        self._inbox: _PlayedInbox | None = None

    @property
    def server(self) -> dict[str, Any]:
        """The server info of the document."""
        greeting = self.script.document.get(GREETING)
        return dict(_GREETING) if greeting is None else valid_server_info(_parsed(greeting))

    @property
    def is_closed(self) -> bool:
        """False: the link stays open."""
        return False

    async def open(self) -> None:
        """Check the files of the connection."""
        check_files(self.settings)

    async def request(
        self,
        subject: str,
        payload: bytes,
        timeout: float | None = None,  # noqa: ARG002 - there is no waiting
        *,
        headers: dict[str, str] | None = None,
    ) -> bytes:
        """Return the answer of the script."""
        self._check_guard(subject)
        result = self.script.answer(subject, payload, headers or {})
        if result == b"!no responders":
            raise NoRespondersError(f"no responders for {subject}")
        return result

    async def request_many(
        self,
        subject: str,
        payload: bytes,  # noqa: ARG002 - one answer to all
        timeout: float | None = None,  # noqa: ARG002 - there is no waiting
    ) -> list[tuple[bytes, bytes]]:
        """Return the answers of the script."""
        self._check_guard(subject)
        return self.script.many(subject)

    async def request_each(
        self,
        requests: Sequence[tuple[str, bytes]],
        parse: Callable[[int, bytes], T],
        timeout: float | None = None,
        *,
        unheard: Callable[[int], T] | None = None,
    ) -> list[T]:
        """Return the answers of the script."""
        found = list[T]()
        for number, (subject, payload) in enumerate(requests):
            try:
                answer = await self.request(subject, payload, timeout)
            except NoRespondersError:
                if unheard is None:
                    raise
                found.append(unheard(number))
            else:
                found.append(parse(number, answer))
        return found

    @contextlib.asynccontextmanager
    async def open_inbox(self, *_: str | None) -> AsyncIterator[Inbox]:
        """Open an inbox for answers to published requests."""
        self._inbox = _PlayedInbox(self)
        yield self._inbox

    async def publish(self, subject: str, payload: bytes, reply: str = "") -> None:
        """Answer at once."""
        self._check_guard(subject)
        if reply and self._inbox is not None:
            self._inbox.queue.append(self.script.answer(subject, payload, {}))

    async def flush(self) -> None:
        """Do nothing."""

    async def close(self) -> None:
        """Do nothing."""


def play_servers(document: Document, *, known: bool = False) -> Script:
    """Play the document on every link of this process from now on."""
    PlayedLink.script = Script(document, known)
    pool.NatsConnection = bucket.NatsConnection = PlayedLink  # type: ignore[attr-defined,assignment]
    return PlayedLink.script
