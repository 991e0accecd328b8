"""Reads of objects of an object store: metadata, and whether all chunks are there."""

from __future__ import annotations

from collections.abc import Mapping

from jsplan.address import Address
from jsplan.facts.live import LiveObject
from jsplan.jetstream import DomainApi
from jsplan.resources.kv_entry import VALUE
from jsplan.resources.stored_object import ObjectMetadata, chunk_subject

#: Reads of an object that is written again each time, after which it counts as incomplete.
MAX_READS = 5


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
