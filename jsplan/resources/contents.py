"""Entries of buckets, objects and schedules: what is particular to each kind of content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from msgspec import Struct

from jsplan.address import Address
from jsplan.resources.account import ACCOUNT
from jsplan.resources.fields import Config, Table
from jsplan.resources.kv_entry import KV_ENTRY, is_key, subject_of, ttl_header_size
from jsplan.resources.message_schedule import SCHEDULE, is_schedule_subject, schedule_header_size
from jsplan.resources.stored_object import OBJECT, is_object_name, metadata_subject


class Content(Struct, frozen=True):
    """One kind of content.

    `subject` returns the subject whose last message is the value, the metadata or the schedule, by
    the names of the bucket and of the content. `is_name` checks whether the files and an address
    can have a name. `header_size` returns the bytes of the headers that a conditional write has
    beside its condition, by the name of the stream and the configuration.
    """

    table: Table
    subject: Callable[[str, str], str]
    is_name: Callable[[str], bool]
    header_size: Callable[[str, Config], int]


CONTENTS: Final[Mapping[str, Content]] = {
    "kv_entry": Content(KV_ENTRY, subject_of, is_key, ttl_header_size),
    "object": Content(OBJECT, metadata_subject, is_object_name, lambda *_: 0),
    "schedule": Content(
        SCHEDULE, lambda _, subject: subject, is_schedule_subject, schedule_header_size
    ),
    # An account is no message.
    "account": Content(ACCOUNT, lambda *_: "", lambda _: False, lambda *_: 0),
}


def content_subject(address: Address) -> str:
    """Return the subject whose last message is the value, the metadata or the schedule."""
    bucket = address.name.partition("/")[0]
    return CONTENTS[address.kind].subject(bucket, address.key)
