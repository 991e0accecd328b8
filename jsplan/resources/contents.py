"""Entries of buckets, objects and schedules, in common: tables and subjects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from jsplan.address import Address
from jsplan.resources.fields import Config, Table
from jsplan.resources.kv_entry import (
    KV_ENTRY,
    TTL,
    TTL_HEADER_SIZE,
    WRITE_HEADERS,
    is_key,
    subject_of,
)
from jsplan.resources.message_schedule import SCHEDULE, build_headers
from jsplan.resources.stored_object import OBJECT, is_object_name, metadata_subject

#: The field table of each kind of content.
CONTENT_TABLES: Final[Mapping[str, Table]] = {
    "kv_entry": KV_ENTRY,
    "object": OBJECT,
    "schedule": SCHEDULE,
}


def content_subject(address: Address) -> str:
    """Return the subject whose last message is the value, the metadata or the schedule."""
    bucket = address.name.partition("/")[0]
    match address.kind:
        case "kv_entry":
            return subject_of(bucket, address.key)
        case "object":
            return metadata_subject(bucket, address.key)
    return address.key


def header_size(address: Address, config: Config) -> int:
    """Return the bytes that the headers of a conditional write of a value need at most."""
    if address.kind == "schedule":
        headers = {"Nats-Expected-Stream": address.stream} | build_headers(config)
        return WRITE_HEADERS + sum(len(f"{name}: {value}\r\n") for name, value in headers.items())
    return WRITE_HEADERS + (TTL_HEADER_SIZE if config.get(TTL) else 0)


def is_content_name(address: Address) -> bool:
    """Check whether the files can name the key or the object."""
    return (is_key if address.kind == "kv_entry" else is_object_name)(address.key)
