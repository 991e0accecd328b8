"""Requests for and counts of messages that a stream copies again, as plain data."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.resources.source_header import SourceName

#: Messages that are searched for the last one of a source of a recreated origin.
MAX_SEARCHED = 100_000


class DuplicateRequest(Struct, frozen=True):
    """A source that is new to the server although another source copies the same origin.

    `origin` is None where the files do not say which stream the source `name` is. `subjects` are
    its subjects, `other_subjects` those of the others. `recreated`: the downstream stream is
    recreated, with all of them; else it may hold earlier messages of just this source, behind which
    the server continues, and `source` is how those name it. It begins at `start_seq` or
    `start_time`. `starts_later`: another source did not begin with the first message.

    `mirror`: the downstream stream is a mirror that has the origin's sequences; what it lacks is
    counted. With `origin_goes` that is all that only the origin has, else what the mirror would
    still copy.
    """

    downstream: Address
    name: str
    origin: Address | None
    subjects: tuple[str, ...]
    other_subjects: tuple[str, ...]
    source: SourceName
    recreated: bool
    start_seq: int = 0
    start_time: str = ""
    starts_later: bool = False
    mirror: bool = False
    origin_goes: bool = False


class DuplicateCount(Struct, frozen=True):
    """Messages of the origin that both the source and another one copy.

    `at_most` is None where it is unknown, for a `reason`.
    """

    request: DuplicateRequest
    at_least: int
    at_most: int | None
    as_of: dict[str, Any] = field(default_factory=dict)
    reason: str = ""
