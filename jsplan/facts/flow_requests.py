"""Requests for and counts of the messages that a mirror or source takes, as plain data."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.resources.source_header import SourceName

#: Messages that are searched for the last one of a source of a recreated origin.
MAX_SEARCHED = 100_000


class FlowRequest(Struct, frozen=True):
    """A mirror or source of `downstream` whose messages are counted; `name` is its key.

    It takes `subjects` of `origin`, from `start_seq` or `start_time` on. `recreated`: the
    downstream stream is new or recreated, so it takes all of them; else it may hold earlier
    messages of just this source, behind which the server continues, and `source` is how those name
    it.

    `mirror`: the downstream stream is a mirror that has the origin's sequences; what it lacks is
    counted. With `origin_goes` that is all that only the origin has, else what the mirror would
    still copy. `stays`: the flow stays, but its stream may refuse what it brings.
    """

    downstream: Address
    name: str
    origin: Address
    subjects: tuple[str, ...]
    source: SourceName
    recreated: bool
    start_seq: int = 0
    start_time: str = ""
    mirror: bool = False
    origin_goes: bool = False
    stays: bool = False


class FlowCount(Struct, frozen=True):
    """The messages of the origin that the flow takes.

    `at_most` is None where it is unknown, for a `reason`.
    """

    request: FlowRequest
    at_least: int
    at_most: int | None
    as_of: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
