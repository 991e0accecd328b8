"""The wire of the KV backend: one bucket of one domain, read and written by key with conditions. What the keys mean is left to `kv`.

Publishes go to `<prefix>.$KV.<bucket>.<key>`, which leads across domains; reads are STREAM.MSG.GET, which the leader answers.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

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
from jsplan.jetstream.api import NO_MESSAGE, STREAM_NOT_FOUND, DomainApi
from jsplan.jetstream.connection import NatsConnection
from jsplan.jetstream.contexts import resolve_settings

#: A condition of a publish does not hold; a cluster says the second where another publish is just under way.
WRONG_LAST_SEQUENCE = (10071, 10164)
#: No copies can be made: a server alone, too few in the cluster, an account that has no limits for so many.
NO_REPLICAS = (10074, 10005, 10120)
#: Somebody made the bucket otherwise between our look and our request.
STREAM_EXISTS = 10058
#: How many revisions of a key are kept.
HISTORY_REVISIONS = 10
#: Bytes of one message at most: it must pass every server on the way, and come back inside JSON as base64.
MAX_MESSAGE_BYTES = 256 * 1024
#: What headers may add to a message, in bytes.
HEADER_BYTES = 1024
#: Copies of the bucket where the domain is a cluster that has so many servers.
REPLICAS = 3
_API_PREFIX: Final = "$JS.API"


class RevisionConflict(Exception):
    """The server did not store a message, because what it was to follow is not what is there."""


@dataclass(frozen=True, slots=True)
class KeyRevision:
    """What a key holds: `data` is None where nothing is or a delete marker; `revision` 0 where not even that is."""

    revision: int
    data: bytes | None


@dataclass(frozen=True, slots=True)
class BucketContents:
    """The bucket as STREAM.INFO shows it: its configuration, its last sequence, and the keys that were asked for."""

    config: dict[str, Any]
    last_sequence: int
    keys: list[str]


def is_transient(error: Exception) -> bool:
    """Whether the same request may work later: nobody answered, or the connection was lost. Not so for what was refused."""
    if isinstance(error, ConnectError):
        return error.is_offline
    return isinstance(error, ApiError) and not isinstance(
        error, ServerRefusedError | NotPermittedError
    )


class Bucket:
    """A KV bucket over a connection of its own, so that a lock is renewed however busy the others are.

    Every method raises ApiError and ConnectError; a lost connection is made again by the next request.
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
        """The subject that a key's messages are stored under."""
        return f"$KV.{self.name}.{key}"

    @property
    def supports_ttl(self) -> bool:
        """Whether a message can have a lifetime of its own. Known after `ensure_exists`."""
        return bool(self._config.get("allow_msg_ttl"))

    @property
    def max_value_bytes(self) -> int:
        """Bytes that one value may have."""
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

    # --- reading ---------------------------------------------------------------------------------------------

    async def get(self, key: str) -> KeyRevision:
        """What the key holds now."""
        return await self._get_message({"last_by_subj": self.subject(key)}) or KeyRevision(0, None)

    async def history(self, key: str) -> list[KeyRevision]:
        """Every revision that is kept, oldest first, without delete markers."""
        found: list[KeyRevision] = []
        after = 0
        while (
            item := await self._get_message({"seq": after + 1, "next_by_subj": self.subject(key)})
        ) is not None:
            if item.revision <= after:
                raise ApiError(
                    f"domain {self.domain.key} answered with revision {item.revision} of {key}, expected one after {after}"
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
        gone = b"\r\nkv-operation:" in headers or b"\r\nnats-marker-reason:" in headers
        return KeyRevision(
            int(message["seq"]), None if gone else base64.b64decode(message.get("data") or "")
        )

    async def read_contents(self, keys: str) -> BucketContents | None:
        """The bucket and its keys that match; None if there is no bucket. Wildcards are those of subjects."""
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
        return BucketContents(info["config"], int(info["state"]["last_seq"]), found)

    # --- writing ---------------------------------------------------------------------------------------------

    async def ensure_exists(self) -> None:
        """Make the bucket if there is none. Raises StateError for one that would lose what is kept in it."""
        there = await self.read_contents("jsplan")
        if there is None:
            self._config = await self._create()
        _require_usable(self._config, self.name)
        await self._write_state_tag()

    async def _write_state_tag(self) -> None:
        """Say on a bucket that somebody else made what it is: so no workspace takes it for something to manage, or to list.

        Whoever may not do that works without.
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
        """As many copies as there are servers for; two clients at once ask for the same, which is no error."""
        wanted = _bucket_config(self.name)
        for replicas in (REPLICAS, 1):
            try:
                made = await self._request(
                    f"STREAM.CREATE.KV_{self.name}",
                    wanted | {"num_replicas": replicas},
                    writes=True,
                )
            except ServerRefusedError as error:
                if (
                    error.err_code == STREAM_EXISTS
                    and (there := await self.read_contents("jsplan")) is not None
                ):
                    return there.config
                if replicas > 1 and error.err_code in NO_REPLICAS:
                    continue
                raise
            return dict(made["config"])
        raise AssertionError("one copy is always asked for")

    async def put(
        self, key: str, data: bytes, conditions: Mapping[str, str], *, timeout: float
    ) -> int:
        """Store a value if the conditions, which are headers, hold; its revision. `timeout` is seconds. Raises Conflict too."""
        link, prefix = await self._connect(), self.domain.api_prefix
        subject = self.subject(key) if prefix == _API_PREFIX else f"{prefix}.{self.subject(key)}"
        said = await link.request(subject, data, timeout, headers=dict(conditions))
        try:
            return int(DomainApi(self.domain, link, read_only=False).parse(subject, said)["seq"])
        except ServerRefusedError as error:
            if error.err_code in WRONG_LAST_SEQUENCE:
                raise RevisionConflict from None
            raise
        except (KeyError, TypeError, ValueError):
            raise ApiError(
                f"domain {self.domain.key} answered {subject} with something that is no ack: {said[:80]!r}"
            ) from None

    async def purge(self, keys: str) -> None:
        """Remove all that is kept under the keys that match."""
        await self._request(
            f"STREAM.PURGE.KV_{self.name}", {"filter": self.subject(keys)}, writes=True
        )

    async def close(self) -> None:
        """Hang up."""
        if self._nats_connection is not None:
            await self._nats_connection.close()


def _bucket_config(name: str) -> dict[str, Any]:
    """A bucket as other clients make it, with a history, and without markers where a message ended its lifetime."""
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
    trouble = None
    if f"$KV.{name}.>" not in (config.get("subjects") or []):
        trouble = "it is a copy of another bucket"
    elif config.get("max_age"):
        trouble = "it has a ttl, so that what is kept in it would be deleted"
    elif 0 < int(config.get("max_msg_size", -1)) < 4 * HEADER_BYTES:
        trouble = f"its values may have {config['max_msg_size']} bytes only"
    if trouble is not None:
        raise StateError(
            f"the bucket {name} cannot keep state: {trouble}",
            hint="Name another one under backend.kv.bucket; jsplan makes it if it is new.",
        )
