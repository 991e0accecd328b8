"""Requests for measurements, and their results, as plain data."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field

from jsplan.address import Address
from jsplan.facts.interest import ConsumerChange, InterestSnapshot
from jsplan.facts.limit_trimming import ExceededLimits
from jsplan.facts.redelivery import Redelivery
from jsplan.facts.reset_count import ResetCount
from jsplan.facts.stored_message import TargetStorage
from jsplan.facts.undelivered import FilterChange

#: Default limit of the reads of one measurement.
MEASURE_LIMIT = 100_000


class FinishedConsumer(Struct, frozen=True):
    """Messages that a consumer has finished: all before `position`, or at most its `delivered`.

    `position` is None where it is unknown.
    """

    filters: tuple[str, ...]
    delivered: int
    position: int | None


class MeasurementRequest(Struct, frozen=True):
    """Request to measure the change of `address` in `stream`, which may be a drained origin.

    A drained origin may be in another domain. `limits` are those of an update. `interest`: the
    stream has or gets interest retention, and the messages that no consumer wants once `consumers`
    have changed are counted; `recreates_consumers`: all of them are recreated. `placeholder`: a
    placeholder consumer keeps all messages until then; with `since`, what arrived or was
    acknowledged after its creation is not counted. `drains` are filters through which a new
    downstream stream consumes the stream. `deletes_later`: the server deletes only with the next
    message of each subject. `finished` are messages that consumers of a stream that becomes a work
    queue have finished. `redelivery` asks only for the messages that a consumer that continues at
    its position receives again; `filter_change` only for those that a changed filter leaves
    undelivered; `reset` only for what a consumer that is set to a position receives again or skips.
    `has_downstream`: the server reads the stream for a downstream stream with a
    consumer that it may not show, so unwanted messages may stay. `changes_subjects`: its subjects
    change, so some may stay. `target_storage`: the messages are copied to a stream in which they
    have another size. `acknowledged_gone`: it was an interest stream before, so a message that all
    its consumers were given is still there only because one has not acknowledged it: it stays.
    """

    address: Address
    stream: Address
    limits: ExceededLimits = field(default_factory=ExceededLimits)
    interest: Literal["", "is", "becomes"] = ""
    consumers: tuple[ConsumerChange, ...] = ()
    recreates_consumers: bool = False
    placeholder: bool = False
    since: InterestSnapshot | None = None
    drains: tuple[str, ...] | None = None
    deletes_later: bool = False
    finished: tuple[FinishedConsumer, ...] = ()
    redelivery: Redelivery | None = None
    filter_change: FilterChange | None = None
    has_downstream: bool = False
    changes_subjects: bool = False
    target_storage: TargetStorage | None = None
    reset: ResetCount | None = None
    acknowledged_gone: bool = False


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


class UnmanagedRequest(Struct, frozen=True):
    """Request for the unmanaged objects of one domain.

    `subjects` are those that streams begin to store, `streams` those all of whose consumers matter,
    `all_streams` asks for all streams.
    """

    domain: str
    subjects: tuple[str, ...] = ()
    streams: tuple[Address, ...] = ()
    all_streams: bool = False
