"""Reads and conditional writes of the keys of one KV bucket in one domain.

Publishes go to `<prefix>.$KV.<bucket>.<key>`, which crosses domains. Reads are STREAM.MSG.GET,
which the leader answers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from msgspec import Struct

from jsplan.address import STATE_TAG
from jsplan.config.model import Connection, Domain
from jsplan.errors import (
    ApiError,
    ApiTimeoutError,
    ConnectError,
    NotPermittedError,
    ServerRefusedError,
    StateError,
)
from jsplan.jetstream.api import DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import resolve_settings
from jsplan.resources.error_codes import (
    NO_CLUSTER,
    NO_LIMITS_FOR_REPLICAS,
    NO_MESSAGE,
    NO_SUITABLE_PEERS,
    STREAM_EXISTS,
    STREAM_NOT_FOUND,
    WRONG_LAST_SEQUENCE,
    WRONG_LAST_SEQUENCE_CLUSTER,
)

#: `err_code` where replicas are impossible: no cluster, too few servers, or limits of the account.
NO_REPLICAS = (NO_CLUSTER, NO_SUITABLE_PEERS, NO_LIMITS_FOR_REPLICAS)
#: Revisions that are kept of each key.
HISTORY_REVISIONS = 10
#: Largest message in bytes. It passes every server between us, and returns as base64 in JSON.
MAX_MESSAGE_BYTES = 256 * 1024
#: Bytes that headers may add to a message.
HEADER_BYTES = 1024
#: Replicas of the bucket, where the cluster has this many servers.
REPLICAS = 3
_API_PREFIX: Final = "$JS.API"


class RevisionConflict(Exception):
    """The server refused a write because its expected revision does not match."""


class KeyRevision(Struct, frozen=True):
    """One revision of a key. `data` is None for a delete marker or no key; `revision` 0: no key.

    `time` is when the server stored it, as RFC 3339.
    """

    revision: int
    data: bytes | None
    time: str = ""


class BucketContents(Struct, frozen=True):
    """Configuration and last sequence of the bucket (STREAM.INFO), and the keys that match.

    `time` is when the server answered, by its own clock, as RFC 3339.
    """

    config: dict[str, Any]
    last_sequence: int
    keys: list[str]
    time: str


def is_transient(error: Exception) -> bool:
    """Return True for errors that a retry may solve: no answer, or a lost connection."""
    if isinstance(error, ConnectError):
        return error.is_offline
    return isinstance(error, ApiError) and not isinstance(
        error, ServerRefusedError | NotPermittedError
    )


class Bucket:
    """A KV bucket over its own connection, so that a busy connection does not delay a renewal.

    Every method raises ApiError and ConnectError. The next request reconnects.
    """

    def __init__(
        self, name: str, domain: Domain, connection: Connection, environ: Mapping[str, str]
    ) -> None:
        self.name = name
        self.domain = domain
        self._connection = connection
        self._environ = environ
        self._nats_connection: NatsConnection | None = None
        self._connecting = asyncio.Lock()
        self._config: dict[str, Any] = {}

    def subject(self, key: str) -> str:
        """Return the subject that stores the messages of a key."""
        return f"$KV.{self.name}.{key}"

    @property
    def supports_ttl(self) -> bool:
        """True if messages can have their own lifetime. Known after `ensure_exists`."""
        return bool(self._config.get("allow_msg_ttl"))

    @property
    def max_value_bytes(self) -> int:
        """Largest value in bytes."""
        payload = (
            int(self._nats_connection.server.get("max_payload", MAX_MESSAGE_BYTES * 2))
            if self._nats_connection
            else MAX_MESSAGE_BYTES * 2
        )
        limit = int(self._config.get("max_msg_size", -1))
        return min(
            MAX_MESSAGE_BYTES,
            payload // 2 - HEADER_BYTES,
            limit - HEADER_BYTES if limit > 0 else MAX_MESSAGE_BYTES,
        )

    async def _connect(self) -> NatsConnection:
        async with self._connecting:
            if self._nats_connection is None or self._nats_connection.is_closed:
                link = NatsConnection(resolve_settings(self._connection, self._environ))
                await link.open()
                self._nats_connection = link
            return self._nats_connection

    async def _request(
        self, api: str, payload: dict[str, Any] | None = None, *, writes: bool = False
    ) -> dict[str, Any]:
        return await DomainApi(self.domain, await self._connect(), read_only=not writes).request(
            api, payload
        )

    # --- read ------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyRevision:
        """Read the current revision of the key."""
        return await self._get_message({"last_by_subj": self.subject(key)}) or KeyRevision(0, None)

    async def history(self, key: str) -> list[KeyRevision]:
        """Read all kept revisions, oldest first, without delete markers."""
        found: list[KeyRevision] = []
        after = 0
        while (
            item := await self._get_message({"seq": after + 1, "next_by_subj": self.subject(key)})
        ) is not None:
            if item.revision <= after:
                raise ApiError(
                    f"domain {self.domain.key} answered with revision {item.revision} of {key}, "
                    f"expected one after {after}"
                )
            after = item.revision
            found += [item] if item.data is not None else []
        return found

    async def _get_message(self, which: dict[str, Any]) -> KeyRevision | None:
        try:
            answer = await self._request(f"STREAM.MSG.GET.KV_{self.name}", which)
        except ServerRefusedError as error:
            if error.err_code in (NO_MESSAGE, STREAM_NOT_FOUND):
                return None
            raise
        message = answer["message"]
        headers = base64.b64decode(message.get("hdrs") or "").lower()
        deleted = b"\r\nkv-operation:" in headers or b"\r\nnats-marker-reason:" in headers
        return KeyRevision(
            int(message["seq"]),
            None if deleted else base64.b64decode(message.get("data") or ""),
            str(message.get("time") or ""),
        )

    async def read_contents(self, keys: str) -> BucketContents | None:
        """Read the bucket and its keys that match; None if there is no bucket.

        Wildcards are those of subjects.
        """
        found: list[str] = []
        api, info = DomainApi(self.domain, await self._connect(), read_only=True), dict[str, Any]()
        try:
            async for info in api.pages(
                f"STREAM.INFO.KV_{self.name}", "subjects", {"subjects_filter": self.subject(keys)}
            ):
                found += [
                    subject.removeprefix(self.subject(""))
                    for subject in info["state"].get("subjects") or ()
                ]
        except ServerRefusedError as error:
            if error.err_code == STREAM_NOT_FOUND:
                return None
            raise
        self._config = info["config"]
        return BucketContents(
            info["config"], int(info["state"]["last_seq"]), found, str(info.get("ts") or "")
        )

    # --- write -----------------------------------------------------------------------------------

    async def ensure_exists(self) -> None:
        """Create the bucket if it is missing. Raises StateError for one that would lose state."""
        existing = await self.read_contents("jsplan")
        if existing is None:
            self._config = await self._create()
        _require_usable(self._config, self.name)
        await self._write_state_tag()

    async def _write_state_tag(self) -> None:
        """Add the state tag to a bucket that another client created.

        The tag keeps workspaces from managing or listing it. Missing permission is no error.
        """
        (name, value), metadata = STATE_TAG, self._config.get("metadata") or {}
        if metadata.get(name) == value:
            return
        own = {key: text for key, text in metadata.items() if not key.startswith("_nats.")}
        with suppress(ServerRefusedError, NotPermittedError, ApiTimeoutError):
            marked = self._config | {"metadata": own | {name: value}}
            self._config = (
                await self._request(f"STREAM.UPDATE.KV_{self.name}", marked, writes=True)
            )["config"]

    async def _create(self) -> dict[str, Any]:
        """Create the bucket with as many replicas as possible, or read a concurrent one."""
        wanted = _bucket_config(self.name)
        for replicas in (REPLICAS, 1):
            try:
                made = await self._request(
                    f"STREAM.CREATE.KV_{self.name}",
                    wanted | {"num_replicas": replicas},
                    writes=True,
                )
            except ServerRefusedError as error:
                if (  # another client created it after we looked
                    error.err_code == STREAM_EXISTS
                    and (existing := await self.read_contents("jsplan")) is not None
                ):
                    return existing.config
                if replicas > 1 and error.err_code in NO_REPLICAS:
                    continue
                raise
            return dict(made["config"])
        raise AssertionError("one replica is always requested")

    async def put(
        self, key: str, data: bytes, conditions: Mapping[str, str], *, timeout: float
    ) -> int:
        """Store a value if the conditions (headers) hold, and return its revision.

        `timeout` is seconds. Raises RevisionConflict too.
        """
        link, prefix = await self._connect(), self.domain.api_prefix
        subject = self.subject(key) if prefix == _API_PREFIX else f"{prefix}.{self.subject(key)}"
        answer = await link.request(subject, data, timeout, headers=dict(conditions))
        try:
            return int(DomainApi(self.domain, link, read_only=False).parse(subject, answer)["seq"])
        except ServerRefusedError as error:
            if error.err_code in (WRONG_LAST_SEQUENCE, WRONG_LAST_SEQUENCE_CLUSTER):
                raise RevisionConflict from None
            raise
        except (KeyError, TypeError, ValueError):
            raise ApiError(
                f"domain {self.domain.key} answered {subject} with something that is no "
                f"acknowledgement: {answer[:80]!r}"
            ) from None

    async def purge(self, keys: str) -> None:
        """Remove all revisions of the keys that match."""
        await self._request(
            f"STREAM.PURGE.KV_{self.name}", {"filter": self.subject(keys)}, writes=True
        )

    async def close(self) -> None:
        """Close the connection."""
        if self._nats_connection is not None:
            await self._nats_connection.close()


def _bucket_config(name: str) -> dict[str, Any]:
    """Configuration as other clients create it, with history and without lifetime markers."""
    return {
        "name": f"KV_{name}",
        "subjects": [f"$KV.{name}.>"],
        "description": "State of jsplan workspaces",
        "storage": "file",
        "max_msgs_per_subject": HISTORY_REVISIONS,
        "discard": "new",
        "deny_delete": True,
        "allow_rollup_hdrs": True,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "metadata": dict([STATE_TAG]),
    }


def _require_usable(config: Mapping[str, Any], name: str) -> None:
    problem = None
    if f"$KV.{name}.>" not in (config.get("subjects") or []):
        problem = "it mirrors another bucket"
    elif config.get("max_age"):
        problem = "its ttl would delete the state"
    elif 0 < int(config.get("max_msg_size", -1)) < 4 * HEADER_BYTES:
        problem = f"its values may have at most {config['max_msg_size']} bytes"
    if problem is not None:
        raise StateError(
            f"the bucket {name} cannot keep state: {problem}",
            hint="Name another bucket under backend.kv.bucket. jsplan creates it if it is new.",
        )
