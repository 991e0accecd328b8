"""Reads one entry of a KV bucket, or one object with its chunks, from its leader."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.jetstream.api import message_headers
from jsplan.resources.contents import content_subject
from jsplan.resources.kv_entry import TTL, VALUE, digest_value, is_deleted, parse_ttl
from jsplan.resources.message_schedule import parse_headers
from jsplan.resources.stored_object import ObjectMetadata, chunk_subject, parse_metadata

#: Reads of an object that is written again each time, after which it counts as incomplete.
MAX_READS = 5


class KeyRevision(Struct, frozen=True):
    """The last message of a key. `content` is None for a marker of a deleted key.

    `revision` is its sequence, 0 for a key that never was. `ttl` is ns, 0 for none; `stored_at` the
    server's time (RFC 3339). `headers` are the block of the message's own.
    """

    revision: int
    content: bytes | None
    ttl: int = 0
    stored_at: str = ""
    headers: bytes = b""


async def read_entry(api: DomainApi, address: Address) -> LiveObject | None:
    """Read one entry or object from the leader; None where it does not exist. Raises ApiError.

    The chunks of an object are counted after its metadata were read. Where some are missing, it may
    have been written again meanwhile.
    """
    bucket = await api.stream_info(address.stream)
    if bucket is None:
        return None
    for _ in range(MAX_READS):
        found = await read_revision(api, address)
        live = parse_entry(address, found, bucket["created"])
        if live is None or address.kind != "object":
            return live
        assert address.parent is not None
        counts = await count_chunks(api, address.parent, live.state["upload"])
        if has_chunks(live, counts):
            return live
        if (await read_revision(api, address)).revision == found.revision:
            return as_incomplete(live, counts)
    return live


async def read_revision(api: DomainApi, address: Address) -> KeyRevision:
    """Read the last message of a key from the leader. Raises ApiError."""
    subject = content_subject(address)
    message = await api.get_message(address.stream, {"last_by_subj": subject})
    if message is None:
        return KeyRevision(0, None)
    headers = message_headers(message)
    content = None if is_deleted(headers) else base64.b64decode(message.get("data") or "")
    return KeyRevision(
        int(message["seq"]), content, parse_ttl(headers), str(message.get("time") or ""), headers
    )


def parse_entry(address: Address, found: KeyRevision, bucket_created: str) -> LiveObject | None:
    """Return the live object of a content; None for a key without a value."""
    if found.content is None:
        return None
    return _PARSERS[address.kind](address, found, bucket_created)


def _parse_value(
    address: Address, found: KeyRevision, created: str, **more: object
) -> LiveObject | None:
    assert found.content is not None
    return LiveObject(
        address,
        {VALUE: digest_value(found.content)} | ({TTL: found.ttl} if found.ttl else {}) | more,
        created,
        {"revision": found.revision, "size": len(found.content), "bucket": created},
        content=found.content,
        answered_at=found.stored_at,
    )


def _parse_object(address: Address, found: KeyRevision, created: str) -> LiveObject | None:
    metadata = parse_metadata(found.content or b"")
    if metadata is None:
        return None
    return parse_object(address, metadata, found.revision, created)


def _parse_schedule(address: Address, found: KeyRevision, created: str) -> LiveObject | None:
    live = _parse_value(address, replace(found, ttl=0), created, **parse_headers(found.headers))
    if live is not None:
        live.state["headers"] = found.headers
    return live


#: How the last message of each kind of content is parsed.
_PARSERS: Final[Mapping[str, Callable[[Address, KeyRevision, str], LiveObject | None]]] = {
    "kv_entry": _parse_value,
    "object": _parse_object,
    "schedule": _parse_schedule,
}


def parse_object(
    address: Address, found: ObjectMetadata, revision: int, bucket_created: str
) -> LiveObject:
    """Return the live object. `state` has its metadata, and the id of its upload."""
    state = {
        "revision": revision,
        "size": found.size,
        "bucket": bucket_created,
        "upload": found.upload,
        "chunks": found.chunks,
        "metadata": dict(found.raw),
    }
    return LiveObject(address, {VALUE: found.digest}, bucket_created, state)


def has_chunks(live: LiveObject, counts: Mapping[str, int]) -> bool:
    """Check whether `counts`, messages by subject, have all chunks of an object."""
    expected = int(live.state["chunks"])
    if not expected:
        return True
    if not live.state["upload"]:
        return False
    bucket = live.address.name.partition("/")[0]
    return counts.get(chunk_subject(bucket, live.state["upload"]), 0) == expected


def as_incomplete(live: LiveObject, counts: Mapping[str, int]) -> LiveObject:
    """Return an object that no client can read, because chunks are missing."""
    bucket, upload = live.address.name.partition("/")[0], live.state["upload"]
    there = counts.get(chunk_subject(bucket, upload), 0) if upload else 0
    text = f"incomplete ({there:,} of {live.state['chunks']:,} chunks)"
    return live.with_raw({VALUE: text})


async def count_chunks(api: DomainApi, bucket: Address, upload: str = "") -> dict[str, int]:
    """Return the chunks of each upload by subject, or of one upload. Raises ApiError."""
    subjects = chunk_subject(bucket.name, upload) if upload else f"$O.{bucket.name}.C.>"
    found: dict[str, int] = {}
    pages = api.pages(f"STREAM.INFO.{bucket.stream}", "subjects", {"subjects_filter": subjects})
    async for page in pages:
        found |= page["state"].get("subjects") or {}
    return found
