"""Requests for measurements and counts of flows, and their results, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from jsplan.address import Address
from jsplan.documents.deletions import DeletionRequest, Limits
from jsplan.facts.consumer_position import ResetCount
from jsplan.facts.limit_trimming import size_growth
from jsplan.facts.undelivered import FilterChange
from jsplan.resources.source_header import SourceName

#: Default limit of the reads of one measurement.
MEASURE_LIMIT = 100_000
#: Messages that are searched for the last one of a source of a recreated origin.
MAX_SEARCHED = 100_000


class MeasurementRequest(Struct, frozen=True):
    """Request to count what the change of `address` does in `stream`, which may be its origin.

    That is in another domain, maybe. `counts` says what: the messages that are deleted; those that
    a changed filter leaves undelivered; or those that a consumer that is set to a position receives
    again or skips.
    """

    address: Address
    stream: Address
    counts: DeletionRequest | FilterChange | ResetCount


def reduce_request(
    request: DeletionRequest, state: Mapping[str, Any], storage: str
) -> DeletionRequest | None:
    """Return the part of a request that deletes something in this `state` of INFO; None if none.

    `storage` is that of the stream.
    """
    messages, size, limits = int(state["messages"]), int(state["bytes"]), request.limits
    if not messages:
        return None
    if request.target_storage:
        size += messages * size_growth(storage, request.target_storage)[1]
    exceeded = Limits(
        max_msgs=limits.max_msgs if limits.max_msgs < messages else 0,
        max_bytes=limits.max_bytes if limits.max_bytes < size else 0,
        max_age=limits.max_age,
        max_msgs_per_subject=limits.max_msgs_per_subject
        if limits.max_msgs_per_subject < messages
        else 0,
    )
    others = request.interest or request.finished or request.drains is not None
    return replace(request, limits=exceeded) if others or exceeded.causes else None


class Measurement(Struct, frozen=True):
    """The result: bounds on messages and bytes. `total` are all messages of the stream.

    `since` and `until` are the times of the oldest and newest deleted message, where known. `as_of`
    is the last message then: its sequence and time. `newest` is the sequence of the newest deleted
    message, 0 where unknown. `acknowledged` are consumers that acknowledge all messages up to one,
    and how many messages each may never receive again: the server takes the deletion of a delivered
    message for its acknowledgement.
    """

    at_least: int
    at_most: int
    least_bytes: int
    most_bytes: int
    total: int
    causes: tuple[str, ...]
    as_of: dict[str, Any]
    since: str = ""
    until: str = ""
    deletes_later: bool = False
    newest: int = 0
    acknowledged: tuple[tuple[str, int], ...] = ()

    @property
    def is_exact(self) -> bool:
        """True if both numbers, messages and bytes, are known."""
        return self.at_least == self.at_most and self.least_bytes == self.most_bytes

    def may_delete_above(self, sequence: int) -> bool:
        """Return True if a deleted message may have a higher sequence."""
        is_known = self.newest > 0
        return self.at_most > 0 and (not is_known or self.newest > sequence)


#: A request, and its answer: None where nothing is deleted.
Answer = tuple[MeasurementRequest, Measurement | None]


class UnmanagedRequest(Struct, frozen=True):
    """Request for the unmanaged objects of one domain.

    `subjects` are those that streams begin to store, `streams` those all of whose consumers matter,
    `all_streams` asks for all streams.
    """

    domain: str
    subjects: tuple[str, ...] = ()
    streams: tuple[Address, ...] = ()
    all_streams: bool = False


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
