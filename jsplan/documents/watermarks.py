"""Watermarks: the ends of streams when drift last looked at them."""

from __future__ import annotations

from msgspec import Struct, field

from jsplan.documents.base import Document
from jsplan.documents.types import AnyAddress, Count, Time, UInt64


class Watermark(Struct, frozen=True, omit_defaults=True):
    """The state of a stream at `at`, the time of a check.

    `created` is its identity, and `last_time` the time of its last message. `deleted` is the number
    of deleted messages between the first and the last one. `serial` is that of the state then: an
    apply since accepts the stream.
    """

    created: str
    at: Time
    serial: Count
    last_seq: UInt64
    last_time: str = ""
    first_seq: UInt64 = 0
    deleted: UInt64 = 0


class Watermarks(Document, tag="watermarks"):
    """The watermarks of a workspace by address."""

    workspace: str
    environment: str | None = None
    streams: dict[AnyAddress, Watermark] = field(default_factory=dict)
