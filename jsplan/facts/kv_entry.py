"""Reads one entry of a KV bucket from its leader."""

from __future__ import annotations

import base64
from dataclasses import dataclass

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import message_headers
from jsplan.resources.kv_entry import (
    TTL,
    VALUE,
    digest_value,
    is_deleted,
    parse_ttl,
    subject_of,
)


@dataclass(frozen=True, slots=True)
class KeyRevision:
    """The last message of a key. `content` is None for a marker of a deleted key.

    `revision` is its sequence, 0 for a key that never was. `ttl` is ns, 0 for none; `stored_at` the
    server's time (RFC 3339).
    """

    revision: int
    content: bytes | None
    ttl: int = 0
    stored_at: str = ""


async def read_entry(api: DomainApi, address: Address) -> LiveObject | None:
    """Read one entry from the leader; None where key or bucket do not exist. Raises ApiError."""
    bucket = await api.stream_info(address.stream)
    if bucket is None:
        return None
    found = await read_revision(api, address)
    return parse_entry(address, found, bucket["created"])


async def read_revision(api: DomainApi, address: Address) -> KeyRevision:
    """Read the last message of a key from the leader. Raises ApiError."""
    subject = subject_of(bucket_name(address), address.key)
    message = await api.get_message(address.stream, {"last_by_subj": subject})
    if message is None:
        return KeyRevision(0, None)
    headers = message_headers(message)
    content = None if is_deleted(headers) else base64.b64decode(message.get("data") or "")
    return KeyRevision(
        int(message["seq"]), content, parse_ttl(headers), str(message.get("time") or "")
    )


def parse_entry(address: Address, found: KeyRevision, bucket_created: str) -> LiveObject | None:
    """Return the live object of an entry; None for a key without a value."""
    if found.content is None:
        return None
    ttl = {TTL: found.ttl} if found.ttl else {}
    return LiveObject(
        address,
        {VALUE: digest_value(found.content)} | ttl,
        bucket_created,
        {"revision": found.revision, "size": len(found.content), "bucket": bucket_created},
        content=found.content,
        answered_at=found.stored_at,
    )


def bucket_name(address: Address) -> str:
    """Return the bucket of an entry."""
    return address.name.partition("/")[0]
